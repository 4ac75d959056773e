// runtime/dispatch/replaced_answer.h: a user's rule in place of Shardwise's rule or kernel for an operator.
#pragma once

#include "runtime/rules/rule.h"

#include <string>

namespace shardwise {

/// From now on `op` uses `rule` in place of its rule, kernel or fallback. torch's derivative formula applies.
/// Throws: c10::ValueError for an operator that torch does not know, or that torch composes from others above autograd.
void replace_answer(const std::string& op, const Rule& rule);

}  // namespace shardwise
