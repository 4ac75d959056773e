// ops/support/planes.h: rules of operators that compute each plane on its own: pooling, interpolation, padding.
#pragma once

#include "runtime/rules/rule.h"

namespace shardwise {

/// The last `n` dims of all operands and outputs are whole; the dims before them, common to all, may be sharded.
Rule planes(const char* name, size_t n);

/// Appends to `axes` the last `n` dims of `sizes`, as whole factors.
void add_whole_axes(c10::IntArrayRef sizes, size_t n, Signature& signature, Axes& axes);

/// Makes all factors whole if an operand has no elements, because global sizes decide whether the operator accepts it.
void keep_whole_if_empty(const OpCall& call, Signature& signature);

}  // namespace shardwise
