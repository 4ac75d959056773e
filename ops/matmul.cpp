// ops/matmul.cpp: contractions.
#include "ops/families.h"

namespace shardwise {

void register_matmul(RuleTable& table) {
  table.add("aten::mm", Rule("mk,kn->mn").multilinear());
  table.add("aten::bmm", Rule("bmk,bkn->bmn").multilinear());
}

}  // namespace shardwise
