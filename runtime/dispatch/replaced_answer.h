// runtime/dispatch/replaced_answer.h: a user's rule in the place of Shardwise's answer to an operator.
#pragma once

#include "runtime/rules/rule.h"

#include <string>

namespace shardwise {

/// From now on `op` goes by `rule`, whatever answered it before: a rule, a kernel or the fallback. torch's derivative formula applies.
/// Throws: c10::ValueError for an operator that torch does not know, or that torch composes of others above autograd.
void replace_answer(const std::string& op, const Rule& rule);

}  // namespace shardwise
