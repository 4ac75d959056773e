// runtime/tensor/write_count.h: how often a tensor was written to, for those who keep something made of its values.
#pragma once

#include <c10/core/TensorImpl.h>

#include <cstdint>

namespace shardwise {

/// Changes with every write to `tensor` or to what shares its memory: autograd's version. Tensors made in inference mode have none: for
/// them it changes with a write to any such tensor on this thread. The same on all ranks where all write alike.
uint32_t write_count(const c10::TensorImpl& tensor);

/// True if a write to one of them is counted as a write to the other: they refer to one counter. It only reads. False for tensors
/// made in inference mode, which have none.
bool share_write_count(const c10::TensorImpl& a, const c10::TensorImpl& b);

/// To be called where a tensor made in inference mode is written to.
void count_inference_write();

}  // namespace shardwise
