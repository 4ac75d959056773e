// runtime/api/replicate_tensors.h: many distributed tensors from whole ones at once.
#pragma once

#include "runtime/tensor/dtensor_impl.h"

#include <vector>

namespace shardwise {

/// distribute_tensor() of each tensor, replicated on every mesh dim. For plain tensors the ranks compare all their facts in one exchange, and the
/// first rank sends the values in few messages.
std::vector<at::Tensor> replicate_tensors(at::TensorList tensors, const MeshPtr& mesh);

}  // namespace shardwise
