// ops/support/planes.h: operators that treat every plane of a tensor alike: pooling, interpolation, padding.
#pragma once

#include "runtime/rules/rule.h"

namespace shardwise {

/// The last `n` dims of all operands and outputs are whole; those before them, which all share, may be cut.
Rule planes(const char* name, size_t n);

/// `n` factors for what may not be cut, of the last dims of `sizes`, at the end of `axes`.
void add_whole_axes(c10::IntArrayRef sizes, size_t n, Signature& signature, Axes& axes);

/// Nothing is cut where an operand has no elements: what the operator makes of a batch of none, and what it refuses, goes by the whole
/// tensor's sizes.
void keep_whole_if_empty(const OpCall& call, Signature& signature);

}  // namespace shardwise
