// ops/support/common_rules.h: rules that several families of operators share.
#pragma once

#include "runtime/rules/rule.h"

#include <initializer_list>
#include <string_view>

namespace shardwise {

/// Adds `rule` for each of these operators ("add"): for every overload with tensors and scalars (add.Tensor, add.Scalar) and its in-place form
/// (add_.Tensor), if this torch has them and does not compose them of other operators. Not for out=, which may resize, nor for overloads that reduce
/// (max.dim).
void add_overloads(RuleTable& table, std::initializer_list<std::string_view> names, const Rule& rule);

/// The rule of operators that compute each plane on its own: pooling, interpolation, padding. The last `n` dims of all operands and outputs are whole; the dims before them, common to all, may be sharded.
Rule planes(const char* name, size_t n);

/// Appends to `axes` the last `n` dims of `sizes`, as whole factors.
void add_whole_axes(c10::IntArrayRef sizes, size_t n, Signature& signature, Axes& axes);

/// Makes all factors whole if an operand has no elements, because global sizes decide whether the operator accepts it.
void keep_whole_if_empty(const OpCall& call, Signature& signature);

}  // namespace shardwise
