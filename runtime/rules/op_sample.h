// runtime/rules/op_sample.h: what an operator without a meta kernel gives, seen on a small sample.
#pragma once

#include "runtime/rules/op_call.h"

namespace shardwise {

/// Fills `call.outputs` for an operator whose rule is sampled(): it runs on tensors of one index along factors that may be
/// sharded, which by their nature do not matter, and of full extent along whole ones. Dtypes and the sizes along whole and new dims
/// are the sample's, the other sizes the factors'. Of row-major operands the outputs are row-major; others are sampled in their order in
/// memory, of two indices along each factor, and the sample's outputs have that of the outputs.
///
/// Returns false where the rule is not or the sample cannot run. Throws: c10::Error for operands whose sizes do not
/// fit each other. Cost: the operator on the sample, a microsecond.
bool infer_from_sample(OpCall& call);

}  // namespace shardwise
