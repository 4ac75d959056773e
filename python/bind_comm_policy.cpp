#include "python/scope.h"
#include "runtime/comm/comm_policy.h"
#include "runtime/comm/no_messages.h"
#include "text/check.h"

#include <string>

namespace shardwise {
namespace {

CommPolicy policy_named(const std::string& name) {
  if (name == "allow") return CommPolicy::kAllow;
  if (name == "warn") return CommPolicy::kWarn;
  if (name == "error") return CommPolicy::kError;
  SW_CHECK_VALUE(false, "[communication_policy] \"{}\" is none of \"allow\", \"warn\", \"error\".", name);
}

/// The string is owned by PyScope's options, which outlive the Reading.
struct NamedReading : Reading {
  explicit NamedReading(const std::string& name) : Reading(name.c_str()) {}
};

}  // namespace

void bind_comm_policy(py::module_& module) {
  using Policy = PyScope<CommPolicyScope, CommPolicy>;
  bind_scope<CommPolicyScope, CommPolicy>(
      module, "communication_policy",
      "A `with` block that says what happens in this thread if an operator would move an operand on its own: \"allow\" "
      "it, \"warn\", or raise\n"
      "ValueError (\"error\") on every rank, before any message. Moves that the program asks for (redistribute, "
      "full_tensor) are always allowed.\n\n"
      ">>> x = sw.DTensor.from_local(torch.ones(3), mesh, [sw.Partial()])\n"
      ">>> with sw.communication_policy(\"error\"):\n"
      "...     y = x + x  # terms are added where they are\n"
      "...     z = torch.relu(x)\n"
      "Traceback (most recent call last):\n"
      "ValueError: [aten::relu] moves Float [3] as [Partial(sum)] on (4) to [3] as [Replicate()] on 4 ranks on its "
      "own. Redistribute it beforehand, or allow it.")
      .def(py::init([](const std::string& name) { return Policy(policy_named(name)); }), py::arg("policy"));
  bind_scope<NamedReading, std::string>(
      module, "Reading",
      "A `with` block in which this thread starts no message: one that begins is an error that names both.")
      .def(py::init<std::string>(), py::arg("name"));
}

}  // namespace shardwise
