// wrappers/parallel_layers.h: model-parallel layers as functions of their parameters. Differentiable.
//
//                     weight (DTensor)         input             output
//   column linear     [out, in], Shard(0)      replicated        columns sharded, or gathered
//   row linear        [out, in], Shard(1)      columns sharded   a sum over ranks, reduced
//   embedding         [V, D], Shard(0) or (1)  ids               columns gathered, or sums reduced
//   cross entropy     -                        classes sharded   the loss
//
// For a DTensor input, on the mesh of the weight, the output is a DTensor, placed as the input on the other mesh dims. For a torch.Tensor, equal on
// every rank (or this rank's part, if documented so), the output is plain too. A loss that each rank computes from a plain output is one loss, not
// one per rank: gradients are those of the dense layer.
//
//   at::Tensor h = column_parallel_linear(x, w1, b1, {.gather_output = false});
//   at::Tensor y = row_parallel_linear(at::relu(h), w2, b2, {.input_is_parallel = true});    // one all-reduce each way
#pragma once

#include "runtime/api/dtensor.h"

#include <optional>

namespace shardwise {

using MaybeTensor = std::optional<at::Tensor>;

struct ColumnLinearCall {
  /// False: each rank keeps its columns (in a plain output, several pieces of a rank are concatenated).
  bool gather_output = true;
  int64_t mesh_dim = 0;
};

/// input @ weight.T + bias, weight and bias sharded along dim 0, any batch dims. The result is in the order of the master weight's rows, for any
/// pieces of them on the ranks. The weight is never redistributed. Messages: forward the gather, if requested; backward one all-reduce of the input's
/// gradient, if it is needed.
at::Tensor column_parallel_linear(const at::Tensor& input, const at::Tensor& weight, const MaybeTensor& bias,
                                  const ColumnLinearCall& call = {});

struct RowLinearCall {
  /// A plain input is this rank's columns, not all of them. (A DTensor has placements.)
  bool input_is_parallel = false;
  int64_t mesh_dim = 0;
};

/// input @ weight.T + bias, weight sharded along dim 1, the bias whole and added once. Messages: forward one all-reduce of the output, and the
/// redistribution of a DTensor that is not sharded as the weight; backward nothing, or the gather of the input's gradient if the input was whole.
/// Throws: c10::ValueError if a plain part is not as wide as this rank's part of the weight.
at::Tensor row_parallel_linear(const at::Tensor& input, const at::Tensor& weight, const MaybeTensor& bias,
                               const RowLinearCall& call = {});

struct ParallelEmbeddingCall {
  std::optional<int64_t> padding_idx = {};  // negative: from the end
  std::optional<double> max_norm = {};
  double norm_type = 2;
  bool scale_grad_by_freq = false;
  bool sparse = false;
  /// False: sharded columns stay sharded, and sums over sharded rows stay Partial.
  bool gather_output = true;
  int64_t mesh_dim = 0;
};

/// Rows of `weight` at `ids`, laid out on the mesh dim as the ids are: replicated, or sharded (by all-to-all) if the ids are. `max_norm` renormalises
/// the rows looked up, in place, by the norm of the whole row. Throws: as F.embedding.
at::Tensor parallel_embedding(const at::Tensor& ids, const at::Tensor& weight, const ParallelEmbeddingCall& call = {});

struct CrossEntropyCall {
  int64_t ignore_index = -100;
  int64_t reduction = 1;  // at::Reduction: Mean; 0 None, 2 Sum
  double label_smoothing = 0;
  /// For plain logits: the mesh whose ranks have the parts; null: all ranks of the world.
  MeshPtr mesh = nullptr;
  int64_t mesh_dim = 0;
};

/// F.cross_entropy for `logits` that are sharded along the classes (dim 1, or the only dim); `target`: class indices, or probabilities. Logits are
/// never redistributed: the ranks reduce a maximum, a sum and the picked value per sample. Plain logits are this rank's classes; their extents are
/// exchanged first (a few numbers), and the loss is plain.
at::Tensor vocab_parallel_cross_entropy(const at::Tensor& logits, const at::Tensor& target,
                                        const CrossEntropyCall& call = {});

}  // namespace shardwise
