// runtime/dispatch/decide.h: computes the decision for a call that is not in the cache.
#pragma once

#include "runtime/dispatch/decision.h"

namespace shardwise {

/// Applies the operator's rule to the call: dense output shapes, propagation, local scalars. Pure except for the meta kernel's errors.
/// A decision without a propagation (no rule, or none that fits) means that inputs are replicated. Cost: a few microseconds.
Decision decide(OpCall& call);

/// The Scalar and float arguments.
std::vector<c10::IValue> numbers_of(const OpInfo& op, c10::ArrayRef<c10::IValue> args);

}  // namespace shardwise
