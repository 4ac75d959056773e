// runtime/rules/acceptable_sharding.h: an operator's rule as a list of shardings of one mesh dimension under which its kernel may run.
#pragma once

#include "runtime/rules/propagate.h"

#include <optional>

namespace shardwise {

/// If a call's operands have the placements `inputs` on a mesh dimension, its outputs have the placements `outputs`. Nothing stands for an
/// argument that is not a tensor.
struct AcceptableSharding {
  c10::SmallVector<std::optional<Placement>, 8> inputs;   // one per operand
  c10::SmallVector<std::optional<Placement>, 2> outputs;  // one per dense output
};

/// Chooses one of `shardings` per mesh dimension: the one that moves the fewest bytes, then the fewest operands, then the first. Dims that
/// are sharded together are split like those of the largest operand that is already sharded in this way. If the dims of a sharding differ
/// in length, for example because the operator halves a dim, it is chosen only if all lengths divide by the ranks of the mesh.
///
/// Returns nothing if no sharding fits.
/// Throws: c10::ValueError if the number of placements differs from that of the call's tensors, IndexError for dims that do not exist.
std::optional<Propagation> propagate_acceptable(const OpCall& call, c10::ArrayRef<AcceptableSharding> shardings);

}  // namespace shardwise
