#include "runtime/dispatch/plain_operand.h"

#include "runtime/api/equal_values.h"
#include "runtime/api/forward_scope.h"
#include "runtime/api/gradients.h"
#include "runtime/comm/order_check.h"
#include "runtime/comm/tracing.h"
#include "text/check.h"

#include <fmt/ranges.h>
#include <torch/csrc/autograd/forward_grad.h>
#include <torch/csrc/autograd/function.h>

#include <atomic>

namespace shardwise {
namespace {

constexpr const char* kWrapInCpp =
    "Wrap it with distribute_tensor(x, mesh, [Replicate()]) if all ranks have the same, with DTensor::from_local(x, "
    "mesh, [Shard(0)]) if each has its part of a batch, or call the module as forward(module, x) of "
    "shardwise/modules.h, within which equal ones count as replicas.";

thread_local bool implicit_replication = false;
std::atomic<bool> one_element_replicas = false;

bool is_index(OperandRole role, const at::Tensor& plain) {
  return (role == OperandRole::kPositions || role == OperandRole::kSelection) &&
         c10::isIntegralType(plain.scalar_type(), /*includeBool=*/true);
}

/// True for the zeros that torch's forward-mode formulas use as the tangent of an operand that has none: one element, expanded.
bool is_missing_tangent(const at::Tensor& plain) {
  if (!torch::autograd::ForwardADLevel::try_get_by_idx(0) || !plain.has_storage() || plain.requires_grad())
    return false;
  for (int64_t dim = 0; dim < plain.dim(); ++dim)
    if (plain.size(dim) > 1 && plain.stride(dim) != 0) return false;
  return plain.storage().nbytes() == plain.itemsize();
}

/// objection_to_plain() without the rule for tensors of one element.
std::optional<std::string> objection_to(const at::Tensor& plain, OperandRole role, const MeshPtr& mesh,
                                        const std::string& as, bool is_read) {
  if (implicit_replication || torch::autograd::get_current_graph_task_id() >= 0) return std::nullopt;
  const auto got = [&](const std::string& rest) {
    return fmt::format("got a torch.Tensor of shape [{}] next to a DTensor{}{}", fmt::join(plain.sizes(), ", "), as,
                       rest);
  };
  if (ForwardScope::is_open()) {
    check_not_traced("a plain tensor next to DTensors");  // the traced graph would treat it as a replica in any call
    if (const std::string difference = ForwardScope::difference(*mesh); !difference.empty())
      return got(fmt::format(", and {}", difference));
  } else if (!is_index(role, plain) && !is_missing_tangent(plain)) {
    return got(fmt::format(". {}", has_wrap_hook() ? ForwardScope::kWrap : kWrapInCpp));
  }
  if (is_read && checks_order() && !is_tracing() && !is_equal_on_all(plain, mesh))
    return got(fmt::format(", and the ranks have different ones. {}", ForwardScope::kWrap));
  return std::nullopt;
}

}  // namespace

std::optional<std::string> objection_to_plain(const at::Tensor& plain, OperandRole role, const MeshPtr& mesh,
                                              const std::string& as, bool is_read) {
  auto objection = objection_to(plain, role, mesh, as, is_read);
  if (!objection || !one_element_replicas) return objection;
  // Ranks may differ in the number of elements, so all that have an objection compare.
  const bool is_equal = is_equal_on_all(plain, mesh);
  return is_equal && plain.numel() == 1 && has_values(plain) ? std::nullopt : objection;
}

void OneElementReplicas::set(bool are_on) { one_element_replicas = are_on; }

void check_plain(const OpInfo& op, const at::Tensor& plain, size_t arg, const MeshPtr& mesh) {
  const OperandRole role = op.args[arg].role;
  std::string as;
  if (role == OperandRole::kBatch || role == OperandRole::kInitialState)
    as = fmt::format(", as {}", op.handle.schema().arguments()[arg].name());
  if (role == OperandRole::kInitialState && !ForwardScope::is_open())
    as +=
        ", which torch.nn's layers make where they are given none, and which counts as a replica after "
        "distribute_module(layer, mesh)";
  const auto objection = objection_to_plain(plain, role, mesh, as, /*is_read=*/!op.args[arg].is_written);
  if (objection) check_not_traced(op.name.c_str());  // outside the graph its forward may allow it
  // ValueError, not TypeError: torch's arithmetic takes a TypeError for "not implemented" and drops its text.
  SW_CHECK_VALUE(!objection, "[{}] {}", op.name, *objection);
  if (mesh->is_member() && records(plain)) keep_gradient_kind(plain);
}

ImplicitReplication::ImplicitReplication() : outer_(implicit_replication) { implicit_replication = true; }
ImplicitReplication::~ImplicitReplication() { implicit_replication = outer_; }
bool ImplicitReplication::is_on() { return implicit_replication; }

}  // namespace shardwise
