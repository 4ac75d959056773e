// runtime/rules/op_sample.h: infers the outputs of an operator without a meta kernel from a small sample call.
#pragma once

#include "runtime/rules/op_call.h"

namespace shardwise {

/// Fills `call.outputs` for an operator whose rule is sampled(). The operator runs on small tensors: two indices along each factor that may
/// be sharded, the full extent along whole ones, and strides in the operands' order. Dtypes, the order of strides, and the sizes along
/// whole and new dims come from the sample; the other sizes are those of the factors.
///
/// Returns false if the rule is not sampled() or the sample cannot run. Throws: c10::Error for operands whose sizes do not match each
/// other. Cost: the operator on the sample, a microsecond.
bool infer_from_sample(OpCall& call);

}  // namespace shardwise
