// runtime/api/redistribute.h: the same values under other placements. Differentiable: the gradient goes back to the source's layout
// (replicated where that was Partial).
//
// A tensor that has the placements already is not copied: the result is a view of it, as Tensor.to() and contiguous() give the tensor
// itself. Any other result has memory of its own.
#pragma once

#include "plans/plan.h"
#include "runtime/redistribute/move_many.h"
#include "runtime/tensor/dtensor_impl.h"

#include <optional>
#include <vector>

namespace shardwise {

struct RedistributeOptions {
  PlanOptions plan = {};
  /// Returns while the last messages are under way: the result waits for them at its first use.
  bool async_op = false;
};

/// Collective over the mesh. Throws: as Layout, before any message.
at::Tensor redistribute(const at::Tensor& tensor, Placements placements);
/// ... on another mesh of the same world: any ranks in any arrangement. Collective over the ranks of both.
at::Tensor redistribute(const at::Tensor& tensor, const MeshPtr& mesh, Placements placements,
                        const RedistributeOptions& options = {});
/// Several tensors at once, whose exchanges share messages; tensor i as `placements[i]` on its own mesh.
/// Throws: c10::ValueError for lists of differing length.
std::vector<at::Tensor> redistribute_many(const std::vector<at::Tensor>& tensors,
                                          const std::vector<Placements>& placements, const PlanOptions& options = {},
                                          int64_t bucket_bytes = kBucketBytes);

/// All values on every member, as a plain tensor (of a replicated one: its piece, aliased). Differentiable: each member's gradient is the
/// whole one.
at::Tensor full_tensor(const at::Tensor& tensor, std::optional<Placements> grad_placements = {});

}  // namespace shardwise
