// cmake/pch_python.h: what every python/bind_*.cpp parses once. pybind11 is the copy that torch carries, whose casters for
// tensors and whose translation of errors we use.
#pragma once

#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/pybind.h>

#include "cmake/pch.h"
