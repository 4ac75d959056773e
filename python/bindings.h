// python/bindings.h: what every part of shardwise._C needs.
//
// bind_<name>.cpp, here or in layers/, defines `void shardwise::bind_<name>(py::module_&)`. The build lists these files, and module.cpp calls each
// function, in alphabetical order.
#pragma once

#include <pybind11/operators.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/utils/pybind.h>

#include <utility>

namespace shardwise {

/// Binds a function that runs without the GIL. Errors and warnings of torch become Python's.
template <class Function, class... Extra>
void define(py::module_& module, const char* name, Function&& function, const Extra&... extra) {
  module.def(name, torch::wrap_pybind_function_no_gil(std::forward<Function>(function)), extra...);
}

/// The same with the GIL, for functions that use Python's objects or take less time than its release.
template <class Function, class... Extra>
void define_with_gil(py::module_& module, const char* name, Function&& function, const Extra&... extra) {
  module.def(name, torch::wrap_pybind_function(std::forward<Function>(function)), extra...);
}

}  // namespace shardwise
