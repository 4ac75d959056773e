// runtime/redistribute/leaf_hooks.h: what layers keep for leaf tensors, in traced programs, where other tensors stand for them.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>

namespace shardwise {

/// How a tracer's tensor gets what a layer keeps for the leaf that it stands for, such as a fused optimizer.
struct LeafHooks {
  std::shared_ptr<void> (*of)(const at::TensorBase& leaf) = [](const at::TensorBase&) {
    return std::shared_ptr<void>();
  };
  void (*give)(const at::Tensor& traced, const std::shared_ptr<void>& kept) = nullptr;
};
/// Set while the layer's library loads.
LeafHooks& leaf_hooks();

}  // namespace shardwise
