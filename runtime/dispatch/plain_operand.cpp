#include "runtime/dispatch/plain_operand.h"

#include <ATen/ops/count_nonzero.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/csrc/autograd/function.h>

namespace shardwise {
namespace {

thread_local bool implicit_replication = false;

/// torch.nn's recurrent layers start from plain zeros where they are given nothing.
bool is_initial_state(const OpInfo& op, const at::Tensor& plain, size_t arg) {
  return op.handle.schema().arguments()[arg].name() == "hx" && at::count_nonzero(plain).item<int64_t>() == 0;
}

}  // namespace

void check_plain(const OpInfo& op, const at::Tensor& plain, size_t arg) {
  const bool is_index = op.args[arg].is_index && c10::isIntegralType(plain.scalar_type(), /*includeBool=*/true);
  // No TypeError: torch's arithmetic takes one for "not implemented" and drops its words.
  TORCH_CHECK_VALUE(
      implicit_replication || is_index || torch::autograd::get_current_graph_task_id() >= 0 ||
          is_initial_state(op, plain, arg),
      fmt::format("[{}] got a torch.Tensor of shape [{}] next to a DTensor. Wrap it with distribute_tensor(x, mesh, "
                  "[Replicate()]), or work under implicit_replication().",
                  op.name, fmt::join(plain.sizes(), ", ")));
}

ImplicitReplication::ImplicitReplication() : outer_(implicit_replication) { implicit_replication = true; }
ImplicitReplication::~ImplicitReplication() { implicit_replication = outer_; }
bool ImplicitReplication::is_on() { return implicit_replication; }

}  // namespace shardwise
