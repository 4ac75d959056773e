// wrappers/local_shards_wrapper.h: this rank's pieces of a table, as TorchRec hands them over, in one tensor.
//
//   auto rows = make_local_shards({a, b}, {{0, 0}, {5, 0}});          // a: rows [0, 2), b: rows [5, 8) of a table
//   auto table = from_local_shards(rows, mesh, {Placement::shard(0)}, {.shape = Dims{8, 16}});
//   auto back = to_local_shards(table);                              // a and b again: same storage, same offsets
//
// Operators run on each piece, in C++: pointwise ones (in place and lists too), copies, casts, factories of its shape and
// views of the wrapper's own sizes. Operands need the same offsets; 0-dim tensors count for every piece. All others are an error.
#pragma once

#include "runtime/api/dtensor.h"
#include "wrappers/local_shards_impl.h"
#include "wrappers/rank_pieces.h"

namespace shardwise {

/// A wrapper over `shards`, of which `offsets` are the places in the table (one per piece and dim). The pieces are aliased,
/// and get gradients where they want them. `options` (dtype, device) and `n_dims` count only where there are no pieces.
/// Throws: c10::ValueError for lists of differing length, pieces of differing dims, dtype or device, negative offsets,
/// 0-dim pieces and pieces that overlap; c10::TypeError for pieces that are distributed or wrappers.
at::Tensor make_local_shards(std::vector<at::Tensor> shards, std::vector<Dims> offsets,
                             const at::TensorOptions& options = {}, int64_t n_dims = 2);

/// The pieces, aliased. All of these throw c10::TypeError for any other tensor.
std::vector<at::Tensor> local_shards(const at::Tensor& wrapper);
std::vector<Dims> local_sizes(const at::Tensor& wrapper);
std::vector<Dims> local_offsets(const at::Tensor& wrapper);

/// The distributed tensor of which the ranks' wrappers are the pieces (aliased).
///
/// With `options.shape` and exact `placements` (Shards with sizes, or an EnumerableShard) nothing is sent, unless `run_check`
/// compares the ranks. A rank without pieces then counts with its wrapper's dtype.
/// Throws: c10::ValueError where this rank's pieces are not those of the placements.
///
/// Otherwise collective over the mesh: offsets are exchanged, and `placements` become exact (infer_layout.h). Throws: as
/// infer_layout(), alike on all ranks.
///
/// A non-member's wrapper only tells the dtype, and `options.shape` must be given.
at::Tensor from_local_shards(const at::Tensor& wrapper, const MeshPtr& mesh, Placements placements,
                             const FromLocalOptions& options = {});

/// from_local_shards() where every rank knows what the members hold: nothing is sent. `all`: one entry per member, in the order of the
/// mesh's grid; `wrapper`: this rank's pieces, as its entry says; a rank without pieces counts with its entry's dtype. The tensor is taken
/// to be sharded along the first dim in which some piece is shorter than it.
/// Throws: c10::ValueError for what infer_layout() refuses, and where the wrapper is not as its entry says.
at::Tensor from_known_shards(const at::Tensor& wrapper, const MeshPtr& mesh, const std::vector<RankPieces>& all);

/// This rank's pieces of a distributed tensor as a wrapper, aliased; without pieces on a non-member, and where the tensor
/// was made from a wrapper without pieces. The gradient is taken to be laid out as `grad_placements`, if not as the tensor.
at::Tensor to_local_shards(const at::Tensor& tensor, std::optional<Placements> grad_placements = {});

}  // namespace shardwise
