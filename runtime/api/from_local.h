// runtime/api/from_local.h: distributed tensors of what each rank holds already.
#pragma once

#include "runtime/tensor/dtensor_impl.h"

#include <optional>
#include <vector>

namespace shardwise {

struct FromLocalOptions {
  /// Compare shapes, dtypes and requires_grad between ranks, and make replicas equal to the first one's.
  bool run_check = false;
  /// Global sizes and strides; without them the local tensors are taken to be of equal sizes, and in memory as this rank's is; Partial
  /// ones in row-major order.
  std::optional<Dims> shape = {};
  std::optional<Dims> stride = {};
  /// The gradient's placements, if not the tensor's own.
  std::optional<Placements> grad_placements = {};
  /// The gradients of this tensor and of others made of the same `local` shortly before, alike and with this option, are added before they
  /// are laid out, so that several layers with one input reduce once. For tensors that nobody else sees: each one's own gradient is lost.
  bool adds_gradients = false;
};

/// The distributed tensor of which `local` is this rank's piece. The piece is aliased: writes to one are seen by the other, and count for
/// both (a write after autograd saved one of them is an error in the backward). On a non-member `local` is ignored, except for whether it
/// is on meta: all ranks' pieces are, or none. Of a ragged layout it is the rank's range, [elements of the flattened dims, *the other
/// dims], contiguous; it may be a view of memory that other tensors share.
/// A tensor of a class of its own (runtime/tensor/subclass.h) is held itself: it is not asked for an alias. With `shape` and Shards without
/// sizes the members tell each other the sizes of theirs if they are local shards of a program (says_places()).
/// Objects of a C++ tensor class go to the class's own (runtime/api/local_form.h), which may send.
/// Throws: c10::ValueError where the piece's sizes are not the ones the placements give this rank (all ranks alike where
/// run_check compares them). Cost: no communication but for run_check.
at::Tensor from_local(const at::Tensor& local, const MeshPtr& mesh, Placements placements,
                      const FromLocalOptions& options = {});

/// The same from several pieces, in the order of Spec::boxes(). Of several pieces each counts its writes for itself.
at::Tensor from_pieces(std::vector<at::Tensor> pieces, const SpecPtr& spec);

/// A tensor of this spec was saved by rank `saved_by`, with its pieces, and this rank loads it.
/// Throws: c10::ValueError naming both ranks unless the layout gives them the same pieces. Terms of a sum are each rank's own.
void check_loadable(const Spec& spec, int64_t saved_by);

/// `tensor`, which all ranks hold alike, as a replicated one (aliased, adds_gradients); itself where it is distributed.
at::Tensor replica_of(const at::Tensor& tensor, const MeshPtr& mesh);

}  // namespace shardwise
