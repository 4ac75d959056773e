#include "runtime/dispatch/plain_operand.h"

#include <ATen/ops/count_nonzero.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/csrc/autograd/forward_grad.h>
#include <torch/csrc/autograd/function.h>

namespace shardwise {
namespace {

thread_local bool implicit_replication = false;

bool may_be_plain(OperandRole role, const at::Tensor& plain) {
  switch (role) {
    case OperandRole::kPositions:
    case OperandRole::kSelection:
      return c10::isIntegralType(plain.scalar_type(), /*includeBool=*/true);
    case OperandRole::kInitialState:  // which torch.nn's recurrent layers make where they are given none
      return at::count_nonzero(plain).item<int64_t>() == 0;
    case OperandRole::kValue:
    case OperandRole::kBatch:
      break;
  }
  return false;
}

/// torch's forward-mode formulas take zeros for the tangent of an operand that has none: one element, expanded.
bool is_missing_tangent(const at::Tensor& plain) {
  if (!torch::autograd::ForwardADLevel::try_get_by_idx(0) || !plain.has_storage()) return false;
  for (int64_t dim = 0; dim < plain.dim(); ++dim)
    if (plain.size(dim) > 1 && plain.stride(dim) != 0) return false;
  return plain.storage().nbytes() == plain.itemsize() && at::count_nonzero(plain).item<int64_t>() == 0;
}

}  // namespace

void check_plain(const OpInfo& op, const at::Tensor& plain, size_t arg) {
  const OperandRole role = op.args[arg].role;
  if (implicit_replication || torch::autograd::get_current_graph_task_id() >= 0 || may_be_plain(role, plain) ||
      is_missing_tangent(plain))
    return;
  std::string what, wrap_own;
  if (role == OperandRole::kBatch) {
    what = fmt::format(", as {}", op.handle.schema().arguments()[arg].name());
    wrap_own =
        "DTensor.from_local(x, mesh, [Shard(0)]) where each rank has its own part, where all have the same with ";
  }
  // No TypeError: torch's arithmetic takes one for "not implemented" and drops its words.
  TORCH_CHECK_VALUE(false, fmt::format("[{}] got a torch.Tensor of shape [{}] next to a DTensor{}. Wrap it with "
                                       "{}distribute_tensor(x, mesh, [Replicate()]), or work under "
                                       "implicit_replication().",
                                       op.name, fmt::join(plain.sizes(), ", "), what, wrap_own));
}

ImplicitReplication::ImplicitReplication() : outer_(implicit_replication) { implicit_replication = true; }
ImplicitReplication::~ImplicitReplication() { implicit_replication = outer_; }
bool ImplicitReplication::is_on() { return implicit_replication; }

}  // namespace shardwise
