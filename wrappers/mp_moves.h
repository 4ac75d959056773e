// wrappers/mp_moves.h: the four moves of model-parallel layers between copies, sums and parts, each with its own backward.
//
//                forward                              backward
//   mp_copy      nothing: a copy per rank             the ranks' gradients are reduced
//   mp_reduce    the ranks' values are reduced        nothing
//   mp_scatter   a copy becomes each rank's part      the parts are gathered
//   mp_gather    the parts become copies              each rank takes its part
//
// They are redistribute() on one mesh dim. A torch.Tensor is this rank's copy, term or part along that mesh dim, and the result is a torch.Tensor.
// For a DTensor the placement on that mesh dim changes, and the result is a DTensor.
//
//   at::Tensor hidden = at::relu(at::linear(mp_copy(x, {mesh}), own_rows_of_w1));     // plain tensors
//   at::Tensor y = mp_reduce(at::linear(hidden, own_columns_of_w2), {mesh});
#pragma once

#include "runtime/api/dtensor.h"

namespace shardwise {

/// The ranks of a move: one dim of a mesh. Without a mesh: the DTensor's own mesh, else all ranks of the world in order.
struct MeshAxis {
  MeshPtr mesh = nullptr;
  int64_t mesh_dim = 0;
};

/// All four moves are collective along the mesh dim, in the direction (forward or backward) that sends. They throw, before any message,
/// c10::IndexError for a dim out of range and c10::ValueError for a DTensor on another mesh or with a placement that the move does not start from.
///
/// `reduce`: how gradients of plain tensors combine. Gradients of a DTensor have placements instead.
at::Tensor mp_copy(const at::Tensor& input, const MeshAxis& axis = {}, Reduce reduce = Reduce::kSum);

/// `reduce`: how plain tensors combine; a DTensor that is Partial must agree. Backward throws c10::NotImplementedError for
/// max, min and product, as from_local() does.
at::Tensor mp_reduce(const at::Tensor& input, const MeshAxis& axis = {}, Reduce reduce = Reduce::kSum);

/// Parts are those of Shard(dim): 10 in 4 are 3,3,3,1. The forward sends nothing.
at::Tensor mp_scatter(const at::Tensor& input, int64_t dim = -1, const MeshAxis& axis = {});

/// Parts of any extents along `dim`, in the order of the mesh. For plain tensors the extents are exchanged first (two messages of a few numbers).
/// Throws: c10::ValueError, alike on all ranks, if the parts differ in other dims or in dtype.
at::Tensor mp_gather(const at::Tensor& input, int64_t dim = -1, const MeshAxis& axis = {});

}  // namespace shardwise
