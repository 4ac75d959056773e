// wrappers/parallel_weight.h: the parameters of model-parallel layers: one master tensor each, sharded along one dim or whole on every rank.
//
//   at::Tensor w = parallel_weight({12, 8}, {.mesh = mesh, .placement = Placement::shard(0)});   // ranks 0..3: rows 0-2, 3-5, 6-8, 9-11
//   at::Tensor qkv = parallel_weight({12, 8}, {.mesh = mesh, .placement = Placement::shard(0), .stride = 3});
//       // three blocks of 4 rows (queries, keys, values), each sharded over the ranks: rank 0 has rows 0, 4, 8, rank 1 rows 1, 5, 9
//   initialize_(w, "xavier_normal");   // the same values on any number of ranks; each draws its own part
#pragma once

#include "runtime/api/dtensor.h"

#include <optional>
#include <string>

namespace shardwise {

struct WeightSharding {
  MeshPtr mesh;
  int64_t mesh_dim = 0;
  Placement placement = Placement::shard(0);  // along mesh_dim: Shard(d) with d from 0, or Replicate()
  int64_t stride = 1;                         // blocks along the sharded dim, each of which is sharded over all ranks
};

/// An uninitialised parameter, which requires a gradient. It is replicated on the other mesh dims; with a stride, it is an EnumerableShard of `stride`
/// pieces per rank, in the order of the master tensor. Blocks and pieces have the sizes of torch.chunk, so sizes need not divide evenly.
/// Throws: c10::IndexError for a dim out of range, c10::ValueError for a stride below 1 and for one above 1 on an N-D mesh.
at::Tensor parallel_weight(c10::IntArrayRef sizes, const WeightSharding& sharding, at::ScalarType dtype = at::kFloat);

/// Draws `tensor` by the name of a distribution: "xavier_normal", "xavier_uniform", "kaiming_normal", "kaiming_uniform" (as torch::nn::Linear is
/// initialised, a = sqrt(5)), "normal", "uniform" (in [0, 1)), "zeros", "ones", or "none", which draws nothing. Fans are those of the whole tensor,
/// and element i is a function of the seed and of i. So any sharding over any number of ranks gives the same values, and each rank draws only its
/// part. Tensors on the meta device are left unchanged.
/// Throws: c10::ValueError listing the names.
void initialize_(const at::Tensor& tensor, const std::string& init_type);

/// Fills row `row` of `tensor` with zeros (negative: from the end), if there is one: the padding of an embedding table.
/// Throws: c10::IndexError for a row out of range.
void zero_row_(const at::Tensor& tensor, std::optional<int64_t> row);

/// Fills `parameter` from the whole `master`, a torch.Tensor that is equal on all ranks, or a DTensor in any layout. A plain master sends nothing.
/// Throws: c10::ValueError for another shape.
void set_master_(const at::Tensor& parameter, const at::Tensor& master);

}  // namespace shardwise
