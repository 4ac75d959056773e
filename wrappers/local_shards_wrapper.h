// wrappers/local_shards_wrapper.h: this rank's pieces of a table in one tensor, as TorchRec passes them.
//
//   auto rows = make_local_shards({a, b}, {{0, 0}, {5, 0}});          // a: rows [0, 2), b: rows [5, 8) of a table
//   auto table = from_local_shards(rows, mesh, {Placement::shard(0)}, {.shape = Dims{8, 16}});
//   auto back = to_local(table);                                     // a and b again: same storage, same offsets
//
// Operators run on each piece, in C++: pointwise operators (in place and on lists too), copies, casts, factories of its shape and views of the
// wrapper's own sizes. Operands need equal offsets; 0-dim tensors apply to every piece. All other operators are an error.
#pragma once

#include "runtime/api/dtensor.h"
#include "wrappers/local_shards_impl.h"
#include "wrappers/rank_pieces.h"

namespace shardwise {

/// A wrapper over `shards`. `offsets` are their places in the table (one per piece and dim). The pieces are aliased; pieces that require gradients
/// get them. `options` (dtype, device) and `n_dims` are used only if there are no pieces.
/// Throws: c10::ValueError for lists of differing length, pieces of differing dims, dtype or device, negative offsets,
/// 0-dim pieces and pieces that overlap; c10::TypeError for pieces that are distributed or wrappers.
at::Tensor make_local_shards(std::vector<at::Tensor> shards, std::vector<Dims> offsets,
                             const at::TensorOptions& options = {}, int64_t n_dims = 2);

/// The pieces, aliased. All of these throw c10::TypeError for any other tensor.
std::vector<at::Tensor> local_shards(const at::Tensor& wrapper);
std::vector<Dims> local_sizes(const at::Tensor& wrapper);
std::vector<Dims> local_offsets(const at::Tensor& wrapper);

/// The distributed tensor whose pieces are in the ranks' wrappers (aliased).
///
/// With `options.shape` and exact `placements` (Shards with sizes, or an EnumerableShard) nothing is sent, unless `run_check` compares the ranks. A
/// rank without pieces then takes the dtype of its wrapper.
/// Throws: c10::ValueError if this rank's pieces are not those of the placements.
///
/// Otherwise collective over the mesh: offsets are exchanged, and `placements` become exact (infer_layout.h). Throws: as
/// infer_layout(), alike on all ranks.
///
/// On a non-member only the wrapper's dtype is used, and `options.shape` is required. to_local() of the tensor is a wrapper again, aliased; it has no
/// pieces on a non-member, and if the given one had none.
at::Tensor from_local_shards(const at::Tensor& wrapper, const MeshPtr& mesh, Placements placements,
                             const FromLocalOptions& options = {});

/// from_local_shards() if every rank knows the pieces of all members: sends nothing. `all`: one entry per member, in the order of the mesh's grid.
/// `wrapper`: this rank's pieces, which must match its entry; a rank without pieces takes its entry's dtype. The tensor is assumed to be sharded
/// along the first dim in which some piece is shorter than the tensor.
/// Throws: c10::ValueError as infer_layout(), and if the wrapper does not match its entry.
at::Tensor from_known_shards(const at::Tensor& wrapper, const MeshPtr& mesh, const std::vector<RankPieces>& all);

}  // namespace shardwise
