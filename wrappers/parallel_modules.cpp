#include "wrappers/parallel_modules.h"

#include <ATen/core/grad_mode.h>

namespace shardwise {
namespace {

/// Registers a parameter of `layer`. The mesh becomes that of the options.
template <class Layer>
at::Tensor add_parameter(Layer& layer, const char* name, c10::IntArrayRef sizes, const Placement& placement,
                         int64_t stride = 1) {
  auto& options = layer.options;
  if (!options.mesh_) options.mesh_ = world_mesh(c10::kCPU);
  const WeightSharding sharding{options.mesh_, options.mesh_dim_, placement, stride};
  return layer.register_parameter(name, parallel_weight(sizes, sharding, options.dtype_));
}

MaybeTensor maybe(const at::Tensor& bias) { return bias.defined() ? MaybeTensor(bias) : std::nullopt; }

}  // namespace

template <class Options>
ParallelLinearImpl<Options>::ParallelLinearImpl(Options given) : options(std::move(given)) {
  const auto placed = layer_placements(LayerKind::kLinear, Options::kSplit);
  const int64_t out = options.out_features_;
  weight = add_parameter(*this, "weight", {out, options.in_features_}, placed.weight, options.stride_);
  if (options.bias_) bias = add_parameter(*this, "bias", {out}, placed.bias, options.stride_);
  reset_parameters();
}

template <class Options>
void ParallelLinearImpl<Options>::reset_parameters() {
  initialize_(weight, options.init_type_);
  if (bias.defined()) initialize_(bias, "zeros");
}

template class ParallelLinearImpl<ColumnParallelLinearOptions>;
template class ParallelLinearImpl<RowParallelLinearOptions>;

at::Tensor ColumnParallelLinearImpl::forward(const at::Tensor& input) {
  return column_parallel_linear(input, weight, maybe(bias), {options.gather_output_, options.mesh_dim_});
}

at::Tensor RowParallelLinearImpl::forward(const at::Tensor& input) {
  return row_parallel_linear(input, weight, maybe(bias), {options.input_is_parallel_, options.mesh_dim_});
}

ParallelEmbeddingImpl::ParallelEmbeddingImpl(ParallelEmbeddingOptions given) : options(std::move(given)) {
  options.call_.mesh_dim = options.mesh_dim_;
  weight =
      add_parameter(*this, "weight", {options.num_embeddings_, options.embedding_dim_}, Placement::shard(options.dim_));
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
