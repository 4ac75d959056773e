// runtime/rules/op_sample.h: what an operator without a meta kernel gives, seen on a small sample.
#pragma once

#include "runtime/rules/op_call.h"

namespace shardwise {

/// Fills `call.outputs` for an operator whose rule is sampled(): it runs on tensors of two indices along factors that may be
/// sharded, and of full extent along whole ones, ordered in memory as the operands are. Dtypes, the order in memory, and the sizes along
/// whole and new dims are the sample's. The other sizes are the factors'.
///
/// Returns false where the rule is not or the sample cannot run. Throws: c10::Error for operands whose sizes do not
/// fit each other. Cost: the operator on the sample, a microsecond.
bool infer_from_sample(OpCall& call);

}  // namespace shardwise
