#include "wrappers/parallel_modules.h"

#include "runtime/tensor/mesh_lines.h"

#include <ATen/core/grad_mode.h>

namespace shardwise {
namespace {

template <class Options>
WeightSharding sharding_along(int64_t tensor_dim, int64_t stride, Options& options) {
  if (!options.mesh_) options.mesh_ = world_mesh(c10::kCPU);
  return {options.mesh_, options.mesh_dim_, tensor_dim, stride};
}

MaybeTensor maybe(const at::Tensor& bias) { return bias.defined() ? MaybeTensor(bias) : std::nullopt; }

}  // namespace

ColumnParallelLinearImpl::ColumnParallelLinearImpl(ColumnParallelLinearOptions given) : options(std::move(given)) {
  const WeightSharding sharding = sharding_along(0, options.stride_, options);
  weight = register_parameter("weight",
                              parallel_weight({options.out_features_, options.in_features_}, sharding, options.dtype_));
  if (options.bias_)
    bias = register_parameter("bias", parallel_weight({options.out_features_}, sharding, options.dtype_));
  reset_parameters();
}

void ColumnParallelLinearImpl::reset_parameters() {
  initialize_(weight, options.init_type_);
  if (bias.defined()) initialize_(bias, "zeros");
}

at::Tensor ColumnParallelLinearImpl::forward(const at::Tensor& input) {
  return column_parallel_linear(input, weight, maybe(bias), {options.gather_output_, options.mesh_dim_});
}

RowParallelLinearImpl::RowParallelLinearImpl(RowParallelLinearOptions given) : options(std::move(given)) {
  const WeightSharding sharding = sharding_along(1, options.stride_, options);
  weight = register_parameter("weight",
                              parallel_weight({options.out_features_, options.in_features_}, sharding, options.dtype_));
  if (options.bias_) {
    const Placements everywhere(options.mesh_->ndim());
    bias = register_parameter(
        "bias", empty({options.out_features_}, options.mesh_, everywhere, options.dtype_).set_requires_grad(true));
  }
  reset_parameters();
}

void RowParallelLinearImpl::reset_parameters() {
  initialize_(weight, options.init_type_);
  if (bias.defined()) initialize_(bias, "zeros");
}

at::Tensor RowParallelLinearImpl::forward(const at::Tensor& input) {
  return row_parallel_linear(input, weight, maybe(bias), {options.input_is_parallel_, options.mesh_dim_});
}

ParallelEmbeddingImpl::ParallelEmbeddingImpl(ParallelEmbeddingOptions given) : options(std::move(given)) {
  const WeightSharding sharding = sharding_along(options.dim_, 1, options);
  options.call_.mesh_dim = options.mesh_dim_;
  weight = register_parameter(
      "weight", parallel_weight({options.num_embeddings_, options.embedding_dim_}, sharding, options.dtype_));
  reset_parameters();
}

void ParallelEmbeddingImpl::reset_parameters() {
  initialize_(weight, options.init_type_);
  zero_row_(weight, options.call_.padding_idx);
}

at::Tensor ParallelEmbeddingImpl::forward(const at::Tensor& ids) {
  return parallel_embedding(ids, weight, options.call_);
}

at::Tensor VocabParallelCrossEntropyImpl::forward(const at::Tensor& logits, const at::Tensor& target) {
  return vocab_parallel_cross_entropy(logits, target, options);
}

}  // namespace shardwise
