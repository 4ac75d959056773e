// runtime/rules/chooser.h: which factor each mesh dim shards, or what else it does, so that the fewest bytes move.
#pragma once

#include "runtime/rules/propagate.h"
#include "runtime/rules/rule.h"

#include <optional>

namespace shardwise {

/// The tensor dim of `axes` that has `factor`, or -1.
int dim_with(const Axes& axes, int factor);

/// True if the outputs for the terms of `operand` add up to the output for its sum. This needs outputs of the operand's dtype, or of one
/// with at least its range: terms of 70,000 and -60,000 are infinite in half, but their sum is not.
bool holds_terms(const OpCall& call, const Operand& operand);

/// propagate() for operands on one mesh, none of them in pieces.
std::optional<Propagation> choose(const OpCall& call, const Signature& signature);

/// The same where strided Shards are the only pieces (strided_chooser.cpp).
std::optional<Propagation> choose_strided(const OpCall& call, const Signature& signature);

}  // namespace shardwise
