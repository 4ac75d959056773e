// python/bindings.h: the headers that every part of shardwise._C needs.
//
// python/bind_<name>.cpp defines `void shardwise::bind_<name>(py::module_&)`. The build lists these files, and module.cpp calls each
// function, in alphabetical order.
#pragma once

#include <torch/csrc/utils/pybind.h>
