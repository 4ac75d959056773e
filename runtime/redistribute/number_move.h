// runtime/redistribute/number_move.h: a number, which is a tensor without dims, next to tensors on another mesh.
//
// An operator takes the number's value there. Among slices of a mesh it is one of several tensors of that name:
//
//   a on mesh["dp"], s on mesh["tp"]    rank 0: a on [0, 2], s on [0, 1]     rank 2: a on [0, 2], s on [2, 3]
//
// so the ranks of a compare the s that they have, and those without one take it from them.
#pragma once

#include "runtime/tensor/shards.h"
#include "runtime/tensor/spec.h"

namespace shardwise {

/// This rank's piece of the number on `destination`'s mesh, to be read only. Collective over both meshes, each in its turn.
///
/// Pre: `source` has no dims; both meshes have memory and belong to one world.
/// Throws: c10::ValueError, on all ranks of `destination`'s mesh, where some have different values; as check_same_meshes() where none
/// of them has the number; where check_comm_policy() does.
/// Cost: a Partial is reduced. Nothing more is sent where the ranks of `destination`'s mesh all are of the number's; else its bytes are
/// gathered over that mesh, or come from the number's where no rank is in both.
Shards move_number(const SpecPtr& source, const Shards& shards, const SpecPtr& destination);

}  // namespace shardwise
