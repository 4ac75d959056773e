// runtime/redistribute/subclass_move.h: moves objects of a Python tensor subclass between ranks.
//
// [Shard(0)] -> [Shard(1)]: each rank slices its object with the class's own slice operator, sends the inner tensors that
// __tensor_flatten__ names, makes objects from received ones with __tensor_unflatten__, and joins these with the class's aten.cat.
#pragma once

#include "runtime/tensor/dtensor_impl.h"

namespace shardwise {

/// This rank's object of the tensor laid out as `to`, in memory of its own. Below autograd. Collective over the mesh. If every rank has all
/// the data it needs, the ranks only tell each other whether the class refused a part.
///
/// Pre: the tensor holds_subclass() on every member of its mesh.
/// Throws, alike on all ranks and before a part is sent: c10::NotImplementedError for another mesh, a Partial, a layout in pieces, and a
/// class that lacks a needed operator; c10::ValueError if the ranks' classes differ. A missing aten.cat is found when the parts have arrived.
/// Cost: a gather of some numbers, an all_to_all of the parts' descriptions, and one message with inner tensors to each rank.
Shards move_subclass(const DTensorImpl& source, const SpecPtr& to);

}  // namespace shardwise
