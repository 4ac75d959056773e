// runtime/rules/acceptable_sharding.h: an operator's rule as a list of shardings of one mesh dimension that its kernel may run under.
#pragma once

#include "runtime/rules/propagate.h"

#include <optional>

namespace shardwise {

/// The operands of a call laid out so on one mesh dimension give outputs laid out so. Nothing: whatever it is, of what is no tensor.
struct AcceptableSharding {
  c10::SmallVector<std::optional<Placement>, 8> inputs;   // one per operand
  c10::SmallVector<std::optional<Placement>, 2> outputs;  // one per dense output
};

/// Chooses, per mesh dimension, the one of `shardings` that moves the fewest bytes, then the fewest operands, then the first. Dims
/// that are sharded together are split as the largest operand that is sharded so already. A sharding whose dims differ in length,
/// as those of an operator that halves a dim do, is chosen where all of them divide by the ranks of the mesh.
///
/// Returns nothing where no sharding fits.
/// Throws: c10::ValueError for other numbers of placements than the call has tensors, IndexError for dims that they do not have.
std::optional<Propagation> propagate_acceptable(const OpCall& call, c10::ArrayRef<AcceptableSharding> shardings);

}  // namespace shardwise
