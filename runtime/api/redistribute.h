// runtime/api/redistribute.h: changes a tensor's placements and keeps its values. Differentiable: the gradient goes back to the source's
// layout (replicated where that was Partial).
//
// A tensor that already has the placements is not copied: the result is a view of it, as Tensor.to() and contiguous() return the tensor
// itself. Any other result has memory of its own.
#pragma once

#include "plans/plan.h"
#include "runtime/redistribute/execute.h"
#include "runtime/redistribute/move_many.h"
#include "runtime/tensor/dtensor_impl.h"

#include <optional>
#include <vector>

namespace shardwise {

struct RedistributeOptions {
  PlanOptions plan = {};
  /// Returns while the last messages are in flight. The result waits for them at its first use.
  bool async_op = false;
  /// Not kShared. Pre for kTaken: autograd records nothing.
  MoveMemory memory = MoveMemory::kOwn;
};

struct MoveDtypes {
  /// The result's dtype, if not the tensor's own. The tensor is cast before anything is sent.
  std::optional<at::ScalarType> forward;
  /// The dtype in which gradients are sent back, if not the result's. They are cast to the tensor's own dtype on arrival.
  std::optional<at::ScalarType> backward;
};

/// Collective over the mesh. Throws: as Layout, before any message.
at::Tensor redistribute(const at::Tensor& tensor, Placements placements);
/// The same to another mesh of the world, with any ranks in any arrangement. Collective over the ranks of both meshes.
at::Tensor redistribute(const at::Tensor& tensor, const MeshPtr& mesh, Placements placements,
                        const RedistributeOptions& options = {});
/// The same in these dtypes.
at::Tensor redistribute(const at::Tensor& tensor, const MeshPtr& mesh, Placements placements,
                        const RedistributeOptions& options, const MoveDtypes& dtypes);
/// Redistributes several tensors at once, and their exchanges share messages. Tensor i gets `placements[i]` on its own mesh.
/// Throws: c10::ValueError for lists of different length.
std::vector<at::Tensor> redistribute_many(const std::vector<at::Tensor>& tensors,
                                          const std::vector<Placements>& placements, const PlanOptions& options = {},
                                          int64_t bucket_bytes = kBucketBytes);

/// All values on every member, as a plain tensor (for a replicated tensor: its piece, aliased). Differentiable: each member's gradient is
/// taken to be the whole one.
at::Tensor full_tensor(const at::Tensor& tensor, std::optional<Placements> grad_placements = {});

}  // namespace shardwise
