// ops/operand_roles.cpp: the arguments of torch's operators, by name, that may be plain tensors next to distributed ones.
#include "runtime/rules/operand_role.h"

#include "ops/families.h"

namespace shardwise {

void register_operand_roles() {
  set_operand_role(OperandRole::kPositions, {"index", "indices", "offs"});
  set_operand_role(OperandRole::kSelection, {"mask", "condition", "repeats"});
  set_operand_role(OperandRole::kInitialState, {"hx"});
  set_operand_role(OperandRole::kBatch, {"indices", "offsets", "per_sample_weights"}, /*in=*/"embedding");
}

}  // namespace shardwise
