// ops/embedding/lookup_operators.h: torch's operators that look rows up, in a file each. Registered when the library loads.
#pragma once

#include "runtime/rules/rule.h"

namespace shardwise {

void register_batched_embedding();
void register_embedding(RuleTable& table);
void register_embedding_bag();
void register_embedding_renorm();

}  // namespace shardwise
