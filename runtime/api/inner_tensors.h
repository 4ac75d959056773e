// runtime/api/inner_tensors.h: the plain tensors inside objects of a Python subclass, as distributed tensors that share their memory.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <utility>
#include <vector>

namespace shardwise {

/// The inner tensors that the class's __tensor_flatten__ names. An inner tensor is sharded if the class's own slice cuts it, and replicated
/// if it does not. Collective over the mesh; empty on a rank outside it.
///
/// Pre: `tensor` is distributed, and each member's local tensor is of one class.
/// Throws, alike on all members: c10::NotImplementedError if the class has no slice or no __tensor_flatten__; c10::ValueError if the ranks'
/// slices cut differently, or if inner tensors that are not cut differ between ranks.
/// Cost: two gathers of some numbers, and a pass over the inner tensors that are not cut.
std::vector<std::pair<std::string, at::Tensor>> inner_tensors(const at::Tensor& tensor);

}  // namespace shardwise
