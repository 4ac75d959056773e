// runtime/rules/propagate.h: from a call's signature and its operands' layouts to the moves and the layouts of the results.
#pragma once

#include "runtime/rules/rule.h"

#include <functional>
#include <optional>

namespace shardwise {

/// The layouts under which a call runs locally.
struct Propagation {
  c10::SmallVector<SpecPtr, 8> inputs;   // one per operand; null: no move
  c10::SmallVector<SpecPtr, 2> outputs;  // one per dense output; null for an undefined one
  bool by_box = false;                   // replicated operands are narrowed to each box before the call
  bool joined = false;                   // one call, on the local tensor that the pieces of a strided Shard form
};

/// Output `dense` with these placements; null for an undefined one.
SpecPtr placed_output(const MeshPtr& mesh, const DenseOutput& dense, Placements placements);

/// The propagation that gives each operand, then each output, the placements `placements_of(its number)`. Nothing if a written operand would move.
std::optional<Propagation> placed(const OpCall& call, const MeshPtr& mesh,
                                  const std::function<Placements(size_t number)>& placements_of);

/// The propagation of a call of one operand and one output. `input`: where the operand moves.
Propagation placed(const OpCall& call, const SpecPtr& input, Placements output);

/// Chooses, per mesh dimension, the factor to shard (or a Partial to pass on, or replication) that moves the fewest bytes. Ties: fewer
/// operands changed, then replicate, Partial, factors in order of appearance. A pure function of its arguments, so every rank makes the
/// same choice. A factor is split in the way in which the largest operand (a written one first) already shards it. A strided Shard passes where a
/// Shard of its dim would, since the indices of a factor may come in any order.
///
/// Returns nothing if a written operand cannot keep its layout.
/// Throws: c10::Error for operands on different meshes. Cost: a few microseconds, no communication.
std::optional<Propagation> propagate(const OpCall& call, const Signature& signature);

/// The same for rules that apply per list element (foreach, fused optimizers).
std::optional<Propagation> propagate_per_element(const OpCall& call);
/// The same for rules that only read the shape of the first operand (zeros_like).
Propagation propagate_shape(const OpCall& call);

}  // namespace shardwise
