// runtime/api/from_local.h: makes distributed tensors from pieces that the ranks already hold.
#pragma once

#include "runtime/tensor/dtensor_impl.h"

#include <optional>
#include <vector>

namespace shardwise {

struct FromLocalOptions {
  /// Compares shapes, dtypes and requires_grad between ranks, and makes replicas equal to the first rank's. With `shape`, the pieces may have any
  /// sizes along sharded dims: Shards without sizes get them.
  bool run_check = false;
  /// Global sizes and strides. By default all local tensors are taken to have equal sizes, and the strides follow this rank's local tensor,
  /// or are row-major for Partial.
  std::optional<Dims> shape = {};
  std::optional<Dims> stride = {};
  /// The gradient's placements, if they differ from the tensor's own.
  std::optional<Placements> grad_placements = {};
  /// Adds up the gradients of this tensor and of equal ones made from the same `local` shortly before with this option, and only then lays
  /// them out. So several layers with one input reduce once. Only for tensors that nobody else sees: the gradient of each single one is
  /// lost.
  bool adds_gradients = false;
};

/// The distributed tensor of which `local` is this rank's piece. The piece is aliased: writes to either are visible in both and bump both
/// version counters (a write after autograd saved one of them is an error in the backward). On a non-member `local` is ignored, except for
/// whether it is on meta: either all ranks' pieces are on meta or none. In a ragged layout `local` is the rank's range, [elements of the
/// flattened dims, *the other dims], contiguous; it may be a view of memory that other tensors share.
/// A tensor of a Python subclass (runtime/tensor/subclass.h) is stored itself, without an alias. If its class says_places() (a program's
/// local shards), `shape` is given and a Shard has no sizes, the members exchange the sizes of their pieces.
/// An object of a C++ tensor class goes to the class's own from_local (runtime/api/local_form.h), which may send.
/// Throws: c10::ValueError if the piece's sizes are not those that the placements give this rank (on all ranks alike if run_check compares
/// them). Cost: no communication except for run_check and the cases above.
at::Tensor from_local(const at::Tensor& local, const MeshPtr& mesh, Placements placements,
                      const FromLocalOptions& options = {});

/// The same from several pieces, in the order of Spec::boxes(). With several pieces, each keeps its own version counter.
at::Tensor from_pieces(std::vector<at::Tensor> pieces, const SpecPtr& spec);

/// Checks that this rank may load the pieces of a tensor of this spec that rank `saved_by` saved.
/// Throws: c10::ValueError naming both ranks, unless the ranks are the same or the layout gives them the same pieces. Partial terms belong
/// to one rank only.
void check_loadable(const Spec& spec, int64_t saved_by);

/// `tensor`, which is equal on all ranks, as a replicated tensor (aliased, adds_gradients). A distributed tensor is returned unchanged.
at::Tensor replica_of(const at::Tensor& tensor, const MeshPtr& mesh);

}  // namespace shardwise
