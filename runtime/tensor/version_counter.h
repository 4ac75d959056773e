// runtime/tensor/version_counter.h: whether autograd counts the writes to two tensors together.
#pragma once

#include <c10/core/TensorImpl.h>

namespace shardwise {

/// True if a write to one of them is counted as a write to the other: they refer to one counter. It only reads. False for tensors
/// made in inference mode, which have none.
bool share_version_counter(const c10::TensorImpl& a, const c10::TensorImpl& b);

}  // namespace shardwise
