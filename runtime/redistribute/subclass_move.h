// runtime/redistribute/subclass_move.h: moves objects of a class of Python's between ranks.
//
//   [Shard(0)] -> [Shard(1)]: each rank takes the parts that the others want by its class's slice, sends the inner tensors that
//   __tensor_flatten__ names, makes objects of those that come by __tensor_unflatten__, and joins them by the class's aten.cat.
#pragma once

#include "runtime/tensor/dtensor_impl.h"

namespace shardwise {

/// This rank's object of the same tensor laid out as `to`, in memory of its own. Below autograd. Collective over the mesh, unless every rank
/// has what it wants: then nothing is sent.
///
/// Pre: the tensor holds_subclass() on every member of its mesh.
/// Throws: on all ranks alike, before a part is sent: c10::NotImplementedError for another mesh, a Partial, a layout in pieces, and a class without
/// an operator that this takes; c10::ValueError where the ranks' classes differ.
/// Cost: a gather of some numbers, an all_to_all of what is said of the parts, and one message to each rank of their inner tensors.
Shards move_subclass(const DTensorImpl& source, const SpecPtr& to);

}  // namespace shardwise
