// python/scope.h: a thread's C++ scope as a Python context manager.
//
//   bind_scope<CommPolicyScope, CommPolicy>(module, "communication_policy", "In a `with` block, ...").def(py::init(...));
#pragma once

#include <torch/csrc/utils/pybind.h>

#include <memory>
#include <tuple>
#include <utility>
#include <vector>

namespace shardwise {

/// A Scope that Python opens and closes, made of `options` each time; within itself too.
template <class Scope, class... Options>
class PyScope {
 public:
  explicit PyScope(Options... options) : options_(std::move(options)...) {}
  void enter() {
    std::apply([this](const auto&... options) { open_.push_back(std::make_unique<Scope>(options...)); }, options_);
  }
  void exit() { open_.pop_back(); }

 private:
  std::tuple<Options...> options_;
  std::vector<std::unique_ptr<Scope>> open_;
};

/// The class `name` of shardwise, which still wants its py::init.
template <class Scope, class... Options>
py::class_<PyScope<Scope, Options...>> bind_scope(py::module_& module, const char* name, const char* doc) {
  using Type = PyScope<Scope, Options...>;
  py::class_<Type> type(module, name, doc);
  type.def("__enter__", &Type::enter).def("__exit__", [](Type& self, const py::args&) { self.exit(); });
  type.attr("__module__") = "shardwise";
  return type;
}

}  // namespace shardwise
