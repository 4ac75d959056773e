// runtime/redistribute/number_move.h: moves a number (a 0-dim tensor) to the mesh of the tensors that it is used with.
//
// The number's value is needed on the tensor's mesh. With slices of a mesh, the ranks know the number on different meshes:
//
//   a on mesh["dp"], s on mesh["tp"]    rank 0: a on [0, 2], s on [0, 1]     rank 2: a on [0, 2], s on [2, 3]
//
// So the ranks of a's mesh compare the values of s that they have, and ranks without s take it from the others.
#pragma once

#include "runtime/tensor/spec.h"

namespace shardwise {

class DTensorImpl;

/// This rank's piece of the number on `destination`'s mesh, for reading only. Collective over both meshes, one after the other.
///
/// Pre: `source` has no dims; both meshes have memory, or neither has; they belong to one world.
/// Throws: c10::ValueError on all ranks of `destination`'s mesh if they have different values; as check_same_meshes() if none of them has
/// the number; as check_comm_policy().
/// Cost: a Partial is reduced. If all ranks of `destination`'s mesh are on the number's mesh, nothing more is sent. Otherwise the number's
/// bytes are gathered over `destination`'s mesh, or sent from the number's mesh if the meshes have no common rank.
Shards move_number(const SpecPtr& source, const Shards& shards, const SpecPtr& destination);

/// This rank's pieces of an operand in the layout `to` that its operator needs, for reading only. A number may be on another mesh. A Partial
/// is reduced again by each operator that needs its value: a program with several such operators should reduce it once.
/// Collective over the meshes. Throws: as move() and move_number().
Shards move_operand(const DTensorImpl& operand, const SpecPtr& to);

}  // namespace shardwise
