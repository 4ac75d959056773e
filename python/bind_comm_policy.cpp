#include "python/bindings.h"
#include "runtime/comm_policy.h"

#include <fmt/format.h>

#include <optional>
#include <string>

namespace shardwise {
namespace {

CommPolicy policy_named(const std::string& name) {
  if (name == "allow") return CommPolicy::kAllow;
  if (name == "warn") return CommPolicy::kWarn;
  if (name == "error") return CommPolicy::kError;
  TORCH_CHECK_VALUE(false,
                    fmt::format("[communication_policy] \"{}\" is none of \"allow\", \"warn\", \"error\".", name));
}

/// A CommPolicyScope that Python opens and closes, on one thread.
class PyCommPolicy {
 public:
  explicit PyCommPolicy(const std::string& name) : policy_(policy_named(name)) {}
  void enter() { scope_.emplace(policy_); }
  void exit() { scope_.reset(); }

 private:
  CommPolicy policy_;
  std::optional<CommPolicyScope> scope_;
};

}  // namespace

void bind_comm_policy(py::module_& module) {
  py::class_<PyCommPolicy>(module, "communication_policy",
                           "In a `with` block, what this thread does where an operator would move an operand on its "
                           "own: \"allow\" it, \"warn\" of it, or\n"
                           "raise ValueError (\"error\") on every rank, before any message. What is asked for "
                           "(redistribute, full_tensor) goes on.")
      .def(py::init<const std::string&>(), py::arg("policy"))
      .def("__enter__", &PyCommPolicy::enter)
      .def("__exit__", [](PyCommPolicy& self, const py::args&) { self.exit(); });
  module.attr("communication_policy").attr("__module__") = "shardwise";
}

}  // namespace shardwise
