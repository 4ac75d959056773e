// ops/support/overloads.h: one rule for all overloads of an operator, by its bare name.
#pragma once

#include "runtime/rules/rule.h"

#include <initializer_list>
#include <string_view>

namespace shardwise {

/// Adds `rule` for each of these operators ("add"): for every overload with tensors and scalars (add.Tensor, add.Scalar) and its in-place form
/// (add_.Tensor), if this torch has them and does not compose them of other operators. Not for out=, which may resize, nor for overloads that reduce
/// (max.dim).
void add_overloads(RuleTable& table, std::initializer_list<std::string_view> names, const Rule& rule);

}  // namespace shardwise
