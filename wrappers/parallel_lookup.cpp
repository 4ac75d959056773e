// wrappers/parallel_lookup.cpp: lookups in tables sharded by rows or columns, and losses of logits sharded by classes.
#include "ops/embedding/lookup_options.h"
#include "text/check.h"
#include "wrappers/parallel_layers.h"
#include "wrappers/plain_parts.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/embedding_renorm.h>
#include <ATen/ops/empty.h>

namespace shardwise {

at::Tensor parallel_embedding(const at::Tensor& ids, const at::Tensor& weight, const ParallelEmbeddingCall& call) {
  check_mesh("parallel_embedding", ids, weight, call.mesh_dim);
  const MeshPtr& mesh = spec_of(weight)->mesh();
  const at::Tensor own = replica_of(ids, mesh);
  int64_t padding_idx = call.padding_idx.value_or(-1);
  if (call.padding_idx) {
    const int64_t n_rows = weight.size(0);
    SW_CHECK_VALUE(
        padding_idx >= -n_rows && padding_idx < n_rows,
        "[parallel_embedding] padding_idx {} is no row of the table: it has {} rows. Use one in [{}, {}), or none.",
        padding_idx, n_rows, -n_rows, n_rows);
    if (padding_idx < 0) padding_idx += n_rows;
  }
  if (call.max_norm) {
    const at::NoGradGuard no_grad;
    at::Tensor table = weight.detach();
    at::embedding_renorm_(table, own, *call.max_norm, call.norm_type);
  }
  LookupOptions options = LookupScope::current();
  const Placement& of_ids = spec_of(own)->placements()[call.mesh_dim];
  if (!call.gather_output && of_ids.is_whole()) options.exchange = LookupExchange::kReduceScatter;
  const LookupScope scope(options);
  at::Tensor rows = at::embedding(weight, own, padding_idx, call.scale_grad_by_freq, call.sparse);
  if (call.gather_output)
    rows = placed_on(rows, call.mesh_dim, of_ids.split_dim() >= 0 ? of_ids : Placement::replicate());
  return is_dtensor(ids) ? rows : local_part(rows);
}

at::Tensor vocab_parallel_cross_entropy(const at::Tensor& logits, const at::Tensor& target,
                                        const CrossEntropyCall& call) {
  constexpr const char* kOp = "vocab_parallel_cross_entropy";
  SW_CHECK_VALUE(logits.dim() > 0, "[{}] the logits are 0-dim. Give [classes] or [n, classes, ...].", kOp);
  const auto loss_of = [&](const at::Tensor& all, const at::Tensor& wanted) {
    return at::cross_entropy_loss(all, wanted, {}, call.reduction, call.ignore_index, call.label_smoothing);
  };
  if (is_dtensor(logits)) return loss_of(logits, target);
  const MeshPtr line = (call.mesh ? call.mesh : world_mesh(logits.device().type()))->line(call.mesh_dim);
  if (!line->is_member()) return at::empty({0}, logits.options());
  const at::Tensor all = joined_parts(logits, logits.dim() > 1 ? 1 : 0, line, kOp);
  const at::Tensor loss = loss_of(all, replica_of(target, line));
  return to_local(placed_on(loss, 0, Placement::replicate()));
}

}  // namespace shardwise
