#include "python/bindings.h"
#include "python/scope.h"
#include "runtime/comm/comm_policy.h"

#include <fmt/format.h>

#include <memory>
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

}  // namespace

void bind_comm_policy(py::module_& module) {
  using Policy = PyScope<CommPolicyScope, CommPolicy>;
  bind_scope<CommPolicyScope, CommPolicy>(
      module, "communication_policy",
      "In a `with` block, what this thread does where an operator would move an operand on its own: \"allow\" it, "
      "\"warn\" of it, or\n"
      "raise ValueError (\"error\") on every rank, before any message. What is asked for (redistribute, full_tensor) "
      "goes on.")
      .def(py::init([](const std::string& name) { return std::make_unique<Policy>(policy_named(name)); }),
           py::arg("policy"));
}

}  // namespace shardwise
