// runtime/tensor/autograd_node.h: nodes of torch's autograd graph made by us.
#pragma once

#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>

#include <memory>
#include <type_traits>

namespace shardwise {

/// Torch holds its nodes by intrusive_ptr, and until 2.12 by shared_ptr.
template <class T>
auto make_node() {
  using Pointer = decltype(torch::autograd::Edge::function);
  if constexpr (std::is_same_v<Pointer, std::shared_ptr<torch::autograd::Node>>)
    return std::shared_ptr<T>(new T, [](auto* node) { deleteNode(node); });
  else
    return c10::make_intrusive<T>();
}

}  // namespace shardwise
