// wrappers/parallel_modules.h: model-parallel layers as torch::nn modules. See parallel_layers.h for the computation, and parallel_weight.h for
// sharding and initialisation of parameters.
//
//   ColumnParallelLinear up(ColumnParallelLinearOptions(8, 32).mesh(mesh).gather_output(false));
//   RowParallelLinear down(RowParallelLinearOptions(32, 8).mesh(mesh).input_is_parallel(true));
//   at::Tensor y = down(at::gelu(up(x)));     // one all-reduce each way
//
// Parameters are DTensors; sizes need not be multiples of the number of ranks. Without a mesh: all ranks of the world, on CPUs.
// Making a module sends nothing; every rank makes it, after the same torch::manual_seed.
#pragma once

#include "wrappers/module_layouts.h"
#include "wrappers/parallel_layers.h"
#include "wrappers/parallel_weight.h"

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

namespace shardwise {

/// The options of all layers with parameters.
template <class Self>
struct ParallelOptions {
  Self& mesh(MeshPtr value) { return set(mesh_, std::move(value)); }
  Self& mesh_dim(int64_t value) { return set(mesh_dim_, value); }
  /// A name that initialize_() knows, for the weight. Biases start at 0.
  Self& init_type(std::string value) { return set(init_type_, std::move(value)); }
  Self& dtype(at::ScalarType value) { return set(dtype_, value); }

  MeshPtr mesh_ = nullptr;
  int64_t mesh_dim_ = 0;
  std::string init_type_ = "xavier_normal";
  at::ScalarType dtype_ = at::kFloat;

 protected:
  template <class Value>
  Self& set(Value& member, Value value) {
    member = std::move(value);
    return static_cast<Self&>(*this);
  }
};

/// The options of both linear layers.
template <class Self>
struct ParallelLinearOptions : ParallelOptions<Self> {
  ParallelLinearOptions(int64_t in_features, int64_t out_features)
      : in_features_(in_features), out_features_(out_features) {}
  Self& bias(bool value) { return this->set(bias_, value); }
  /// Blocks of the sharded features (3 for fused queries, keys and values), each sharded over all ranks. A row layer has those of the column layer
  /// before it.
  Self& stride(int64_t value) { return this->set(stride_, value); }

  int64_t in_features_, out_features_;
  bool bias_ = true;
  int64_t stride_ = 1;
};

struct ColumnParallelLinearOptions : ParallelLinearOptions<ColumnParallelLinearOptions> {
  static constexpr LayerSplit kSplit = LayerSplit::kColwise;
  using ParallelLinearOptions::ParallelLinearOptions;
  auto& gather_output(bool value) { return set(gather_output_, value); }

  bool gather_output_ = true;
};

struct RowParallelLinearOptions : ParallelLinearOptions<RowParallelLinearOptions> {
  static constexpr LayerSplit kSplit = LayerSplit::kRowwise;
  using ParallelLinearOptions::ParallelLinearOptions;
  auto& input_is_parallel(bool value) { return set(input_is_parallel_, value); }

  bool input_is_parallel_ = false;
};

/// The parameters of both linear layers: weight [out, in] and bias [out], placed as layer_placements() says.
template <class Options>
class ParallelLinearImpl : public torch::nn::Module {
 public:
  explicit ParallelLinearImpl(Options options);
  void reset_parameters();

  Options options;
  at::Tensor weight, bias;  // bias is undefined if there is none
};

/// input @ weight.T + bias, both sharded along out.
class ColumnParallelLinearImpl : public ParallelLinearImpl<ColumnParallelLinearOptions> {
 public:
  using ParallelLinearImpl::ParallelLinearImpl;
  at::Tensor forward(const at::Tensor& input);
};
TORCH_MODULE(ColumnParallelLinear);

/// input @ weight.T + bias; the weight sharded along in, the bias whole on every rank.
class RowParallelLinearImpl : public ParallelLinearImpl<RowParallelLinearOptions> {
 public:
  using ParallelLinearImpl::ParallelLinearImpl;
  at::Tensor forward(const at::Tensor& input);
};
TORCH_MODULE(RowParallelLinear);

struct ParallelEmbeddingOptions : ParallelOptions<ParallelEmbeddingOptions> {
  ParallelEmbeddingOptions(int64_t num_embeddings, int64_t embedding_dim)
      : num_embeddings_(num_embeddings), embedding_dim_(embedding_dim) {}
  auto& padding_idx(std::optional<int64_t> value) { return set(call_.padding_idx, value); }
  auto& max_norm(std::optional<double> value) { return set(call_.max_norm, value); }
  auto& norm_type(double value) { return set(call_.norm_type, value); }
  auto& scale_grad_by_freq(bool value) { return set(call_.scale_grad_by_freq, value); }
  auto& sparse(bool value) { return set(call_.sparse, value); }
  auto& gather_output(bool value) { return set(call_.gather_output, value); }
  /// The dim of the table that is sharded: 1 for columns, 0 for rows.
  auto& dim(int64_t value) { return set(dim_, value); }

  int64_t num_embeddings_, embedding_dim_;
  int64_t dim_ = 1;
  ParallelEmbeddingCall call_;
};

/// Rows of a table [num_embeddings, embedding_dim] by ids; the padding row starts at 0.
class ParallelEmbeddingImpl : public torch::nn::Module {
 public:
  explicit ParallelEmbeddingImpl(ParallelEmbeddingOptions options);
  at::Tensor forward(const at::Tensor& ids);
  void reset_parameters();

  ParallelEmbeddingOptions options;
  at::Tensor weight;
};
TORCH_MODULE(ParallelEmbedding);

/// vocab_parallel_cross_entropy(logits, target, options).
class VocabParallelCrossEntropyImpl : public torch::nn::Module {
 public:
  explicit VocabParallelCrossEntropyImpl(CrossEntropyCall call = {}) : options(std::move(call)) {}
  at::Tensor forward(const at::Tensor& logits, const at::Tensor& target);

  CrossEntropyCall options;
};
TORCH_MODULE(VocabParallelCrossEntropy);

}  // namespace shardwise
