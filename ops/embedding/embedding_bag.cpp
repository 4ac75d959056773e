// ops/indexing/embedding_bag.cpp: sums, means and maxima of bags of rows. The table is gathered; plain offsets, which torch makes for bags of one
// length, count as replicas.
#include "ops/families.h"
#include "ops/indexing/index_operand.h"
#include "ops/kernels.h"
#include "runtime/dtensor.h"

#include <ATen/ops/_embedding_bag.h>

namespace shardwise {
namespace {

using Results = std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor>;

Results look_up_bags(const at::Tensor& weight, const at::Tensor& indices, const at::Tensor& offsets, bool by_freq,
                     int64_t mode, bool sparse, const std::optional<at::Tensor>& per_sample_weights,
                     bool include_last_offset, std::optional<int64_t> padding_idx) {
  constexpr const char* kOp = "aten::embedding_bag";
  TORCH_CHECK_NOT_IMPLEMENTED(
      !sparse || !weight.requires_grad() || !c10::GradMode::is_enabled(),
      "[aten::embedding_bag] sparse=True asks for sparse gradients, which a DTensor cannot hold. "
      "Use sparse=False.");
  const MeshPtr& mesh = spec_of(weight)->mesh();
  int64_t padding = padding_idx.value_or(-1);
  if (padding_idx && padding < 0) padding += weight.size(0);
  return at::_embedding_bag(weight, index_operand(kOp, indices, mesh), index_operand(kOp, offsets, mesh), by_freq, mode,
                            sparse, per_sample_weights, include_last_offset, padding);
}

Results look_up_unpadded(const at::Tensor& weight, const at::Tensor& indices, const at::Tensor& offsets, bool by_freq,
                         int64_t mode, bool sparse, const std::optional<at::Tensor>& per_sample_weights,
                         bool include_last_offset) {
  return look_up_bags(weight, indices, offsets, by_freq, mode, sparse, per_sample_weights, include_last_offset, {});
}

}  // namespace

void register_embedding_bag() {
  add_composition("embedding_bag", &look_up_unpadded);
  add_composition("embedding_bag.padding_idx", &look_up_bags);
}

}  // namespace shardwise
