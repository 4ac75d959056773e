// runtime/api/inner_tensors.h: the plain tensors that objects of a class of Python's hold, as distributed tensors that share their memory.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <utility>
#include <vector>

namespace shardwise {

/// The inner tensors that the class's __tensor_flatten__ names, each sharded where the class's own slice cuts it, and replicated where the
/// slice leaves it whole. Collective over the mesh; none on a rank outside it.
///
/// Pre: `tensor` is distributed, and each member's local tensor is of one class.
/// Throws, alike on all members: c10::NotImplementedError where the class takes no slice or has no __tensor_flatten__, c10::ValueError where
/// ranks differ in what a slice leaves whole, or in how it cuts.
/// Cost: two gathers of some numbers, and a pass over what is left whole.
std::vector<std::pair<std::string, at::Tensor>> inner_tensors(const at::Tensor& tensor);

}  // namespace shardwise
