// runtime/tensor/autograd_node.h: creates nodes of torch's autograd graph.
#pragma once

#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>

#include <memory>
#include <type_traits>
#include <utility>

namespace shardwise {

/// torch holds its nodes by intrusive_ptr; up to version 2.12, by shared_ptr.
using NodePtr = decltype(torch::autograd::Edge::function);
inline constexpr bool kNodesAreStd = std::is_same_v<NodePtr, std::shared_ptr<torch::autograd::Node>>;
using WeakNodePtr = std::conditional_t<kNodesAreStd, std::weak_ptr<torch::autograd::Node>,
                                       c10::weak_intrusive_ptr<torch::autograd::Node>>;

template <class T, class... Args>
auto make_node(Args&&... args) {
  if constexpr (kNodesAreStd)
    return std::shared_ptr<T>(new T(std::forward<Args>(args)...), [](auto* node) { deleteNode(node); });
  else
    return c10::make_intrusive<T>(std::forward<Args>(args)...);
}

}  // namespace shardwise
