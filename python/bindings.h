// python/bindings.h: the headers that every part of shardwise._C needs.
//
// bind_<name>.cpp, here or in layers/, defines `void shardwise::bind_<name>(py::module_&)`. The build lists these files, and module.cpp calls each
// function, in alphabetical order.
#pragma once

#include <torch/csrc/utils/pybind.h>
