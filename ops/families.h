// ops/families.h: the operator families, one function and one file each.
#pragma once

#include "runtime/rule.h"

namespace torch {
class Library;
}

namespace shardwise {

void register_pointwise(RuleTable& table);
void register_matmul(RuleTable& table);
void register_views(RuleTable& table);

}  // namespace shardwise
