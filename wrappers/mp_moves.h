// wrappers/mp_moves.h: the four moves of model-parallel layers between copies, sums and parts, each with its own way back.
//
//                forward                              backward
//   mp_copy      nothing: a copy per rank             the ranks' gradients are reduced
//   mp_reduce    the ranks' values are reduced        nothing
//   mp_scatter   a copy becomes each rank's part      the parts are gathered
//   mp_gather    the parts become copies              each rank takes its part
//
// They are redistribute() on one mesh dim. A torch.Tensor is what this rank has along that dim, and the result is a torch.Tensor;
// a DTensor's placement on that dim changes, and the result is a DTensor.
//
//   at::Tensor hidden = at::relu(at::linear(mp_copy(x, {mesh}), own_rows_of_w1));     // plain tensors
//   at::Tensor y = mp_reduce(at::linear(hidden, own_columns_of_w2), {mesh});
#pragma once

#include "runtime/api/dtensor.h"

namespace shardwise {

/// The ranks of a move: one dim of a mesh. Without a mesh: the DTensor's own, else all ranks of the world in order.
struct MeshAxis {
  MeshPtr mesh = nullptr;
  int64_t mesh_dim = 0;
};

/// All ranks of this thread's world in a row.
MeshPtr world_mesh(c10::DeviceType device_type);

/// The ranks through this one along `mesh_dim` (through coordinate 0 on a non-member), as a mesh of their own. Nothing is sent:
/// their group exists.
MeshPtr line_of(const MeshPtr& mesh, int64_t mesh_dim);

/// All four are collective along the mesh dim in the direction that moves, and throw, before any message, c10::IndexError for
/// a dim out of range and c10::ValueError for a DTensor of another mesh or of a placement that the move does not start from.
///
/// `reduce`: how gradients of plain tensors combine; those of a DTensor have placements.
at::Tensor mp_copy(const at::Tensor& input, const MeshAxis& axis = {}, Reduce reduce = Reduce::kSum);

/// `reduce`: how plain tensors combine; a DTensor that is Partial must agree. Backward throws c10::NotImplementedError for
/// max, min and product, as from_local() does.
at::Tensor mp_reduce(const at::Tensor& input, const MeshAxis& axis = {}, Reduce reduce = Reduce::kSum);

/// Parts as Shard(dim) has them: 10 in 4 are 3,3,3,1. The forward sends nothing.
at::Tensor mp_scatter(const at::Tensor& input, int64_t dim = -1, const MeshAxis& axis = {});

/// Parts of any extents along `dim`, in the order of the mesh. Of plain tensors these are exchanged first (two messages of a
/// few numbers); c10::ValueError, alike on all ranks, where the parts differ in other dims or in dtype.
at::Tensor mp_gather(const at::Tensor& input, int64_t dim = -1, const MeshAxis& axis = {});

}  // namespace shardwise
