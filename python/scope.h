// python/scope.h: a thread's C++ scope as a Python context manager.
//
//   bind_scope<CommPolicyScope, CommPolicy>(module, "communication_policy", "In a `with` block, ...").def(py::init(...));
#pragma once

#include "python/bindings.h"

#include <map>
#include <memory>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

namespace shardwise {

/// A Scope that Python opens and closes, made from `options` each time. It may be nested, and used by several threads.
template <class Scope, class... Options>
class PyScope {
 public:
  explicit PyScope(Options... options) : options_(std::move(options)...) {}
  void enter() {
    auto scope = std::apply([](const auto&... options) { return std::make_unique<Scope>(options...); }, options_);
    open_[std::this_thread::get_id()].push_back(std::move(scope));  // the GIL is held
  }
  /// `name`: for the error. `has_failed`: an exception ends the block. Otherwise a Scope with a finish() does that.
  void exit(const char* name, bool has_failed) {
    const auto open = open_.find(std::this_thread::get_id());
    TORCH_CHECK_VALUE(open != open_.end(), "[", name,
                      "] __exit__ without __enter__ on this thread. Use the scope in a `with` block.");
    const std::unique_ptr<Scope> scope = std::move(open->second.back());
    open->second.pop_back();
    if (open->second.empty()) open_.erase(open);
    if constexpr (requires { scope->finish(); })
      if (!has_failed) scope->finish();
  }

 private:
  std::tuple<Options...> options_;
  std::map<std::thread::id, std::vector<std::unique_ptr<Scope>>> open_;
};

/// Binds the class `name` of shardwise. The caller adds its py::init.
template <class Scope, class... Options>
py::class_<PyScope<Scope, Options...>> bind_scope(py::module_& module, const char* name, const char* doc) {
  using Type = PyScope<Scope, Options...>;
  py::class_<Type> type(module, name, doc);
  type.def("__enter__", torch::wrap_pybind_function(&Type::enter))
      .def("__exit__", torch::wrap_pybind_function([name](Type& self, const py::args& error) {
             self.exit(name, !error.empty() && !error[0].is_none());
           }));
  return type;
}

}  // namespace shardwise
