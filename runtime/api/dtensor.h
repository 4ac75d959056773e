// runtime/api/dtensor.h: making distributed tensors, moving them and taking them apart; all differentiable.
//
//   auto mesh = DeviceMesh::create(World::current(), c10::kCPU, {{4}, {0, 1, 2, 3}});
//   at::Tensor table = distribute_tensor(torch::rand({10, 3}), mesh, {Placement::shard(0)});   // 3,3,3,1 rows
//   at::Tensor columns = redistribute(table, {Placement::shard(1)});
//   at::Tensor dense = full_tensor(columns);
#pragma once

#include "plans/plan.h"
#include "runtime/tensor/dtensor_impl.h"

#include <optional>
#include <vector>

namespace shardwise {

using Placements = std::vector<Placement>;

struct FromLocalOptions {
  /// Compare shapes and dtypes between ranks, and make replicas equal to the first one's.
  bool run_check = false;
  /// Global sizes and strides; without them the local sizes are taken as those of even shards.
  std::optional<Dims> shape;
  std::optional<Dims> stride;
  /// The gradient's placements, if not the tensor's own.
  std::optional<Placements> grad_placements;
};

/// The distributed tensor of which `local` is this rank's piece. The piece is aliased. On a non-member `local` is ignored.
/// Throws: c10::ValueError where the piece's sizes are not the ones the placements give this rank (all ranks alike where
/// run_check compares them). Cost: no communication but for run_check.
at::Tensor from_local(const at::Tensor& local, const MeshPtr& mesh, Placements placements,
                      const FromLocalOptions& options = {});

/// The same from several pieces, in the order of Spec::boxes().
at::Tensor from_pieces(std::vector<at::Tensor> pieces, const SpecPtr& spec);

/// This rank's piece, aliased; empty (0 elements) on a non-member. The gradient is taken to be laid out as
/// `grad_placements`, if not as the tensor (where it is Partial: replicated).
/// Throws: c10::ValueError where the rank holds several pieces.
at::Tensor to_local(const at::Tensor& tensor, std::optional<Placements> grad_placements = {});
std::vector<at::Tensor> to_pieces(const at::Tensor& tensor);

/// The same values laid out as `placements`. The gradient goes back to the source's layout (replicated where it was Partial).
/// Collective over the mesh. Throws: as Layout, before any message.
at::Tensor redistribute(const at::Tensor& tensor, Placements placements);
struct RedistributeOptions {
  PlanOptions plan;
  /// Returns while the last messages are under way: the result waits for them at its first use.
  bool async_op = false;
};
/// ... on another mesh of the same world: any ranks in any arrangement. Collective over the ranks of both.
at::Tensor redistribute(const at::Tensor& tensor, const MeshPtr& mesh, Placements placements,
                        const RedistributeOptions& options = {});
/// Several tensors at once, whose exchanges share messages; tensor i as `placements[i]` on its own mesh. Differentiable likewise.
/// Throws: c10::ValueError for lists of differing length.
std::vector<at::Tensor> redistribute_many(const std::vector<at::Tensor>& tensors,
                                          const std::vector<Placements>& placements, const PlanOptions& options = {},
                                          int64_t bucket_bytes = int64_t{25} << 20);

/// All values on every member, as a plain tensor. Differentiable: each member's gradient is the whole one.
at::Tensor full_tensor(const at::Tensor& tensor, std::optional<Placements> grad_placements = {});

/// Shards `tensor`, which every rank holds, or the first member's copy of it, where `src_data_rank` names that member's place in
/// the mesh (then its values are broadcast). Differentiable only without broadcast.
at::Tensor distribute_tensor(const at::Tensor& tensor, const MeshPtr& mesh, Placements placements,
                             std::optional<int64_t> src_data_rank = 0);

/// A tensor of one value: this rank fills only its own part.
at::Tensor full(c10::IntArrayRef sizes, const at::Scalar& value, const MeshPtr& mesh, Placements placements,
                at::ScalarType dtype);
at::Tensor empty(c10::IntArrayRef sizes, const MeshPtr& mesh, Placements placements, at::ScalarType dtype);

/// The spec of a distributed tensor. Throws: c10::TypeError for any other.
const SpecPtr& spec_of(const at::Tensor& tensor);

}  // namespace shardwise
