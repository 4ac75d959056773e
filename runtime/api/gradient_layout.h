// runtime/api/gradient_layout.h: backward() gives the gradient of a leaf the leaf's layout. For a parameter sharded over n ranks, each
// rank has 1/n of the gradient.
//
//   loss.backward();              // each gradient is reduced once, when it is complete
//   {
//     AccumulatedGradients scope;
//     for (const auto& batch : batches) loss_of(batch).backward();   // gradients are added up in their own layout, e.g. Partial
//     scope.finish();                                                // and reduced once, together
//   }
#pragma once

#include "runtime/tensor/dtensor_impl.h"

#include <c10/util/ThreadLocalDebugInfo.h>
#include <torch/csrc/autograd/variable.h>

#include <memory>

namespace shardwise {

/// True for a leaf that requires a gradient and that lay_out_gradient() has not been called for. Cost: two reads.
inline bool wants_gradient_layout(const DTensorImpl& tensor) {
  const auto* meta = static_cast<const torch::autograd::AutogradMeta*>(tensor.autograd_meta());
  return meta && meta->requires_grad_ && !tensor.has_gradient_layout();
}

// Operands that a call whose decision is_direct may hand to the kernel at once.

/// True if the pieces are here and plain, and nothing has to be noted about the tensor. Cost: some reads.
inline bool is_for_kernel(const DTensorImpl& tensor) {
  return tensor.is_ready() && !tensor.local_form() && !wants_gradient_layout(tensor);
}
/// The same for a tensor that is not distributed: a number whose history nobody follows.
inline bool is_for_kernel(const at::Tensor& plain) { return plain.dim() == 0 && !plain.requires_grad(); }

/// From now on backward() gives `leaf` a .grad with the leaf's layout at that time (replicated if the leaf is Partial). Operators call this
/// for each leaf that they use.
///
/// If the new layout takes less memory, as for a sharded parameter, the gradient is laid out when it arrives, before a program's hooks see
/// it. Otherwise, as for a replicated parameter, it is laid out at the end of backward(), where all such gradients share messages; if .grad
/// exists already, the new gradient is added to it when it arrives. Gradients on another mesh stay there.
void lay_out_gradient(DTensorImpl& leaf);

class GradientsToLayOut;

/// During its lifetime, and in the backward passes that this thread starts, gradients are added up in the layouts that operators give them.
/// Scopes nest: the outermost one lays the gradients out.
class AccumulatedGradients {
 public:
  AccumulatedGradients();
  ~AccumulatedGradients();
  C10_DISABLE_COPY_AND_ASSIGN(AccumulatedGradients);

  /// Lays out the .grad of each leaf that received a gradient, in the order in which operators first met the leaves; exchanges share
  /// messages. Collective over their meshes. If it is not called, for example because of an exception, gradients keep their layouts.
  void finish();

 private:
  std::shared_ptr<GradientsToLayOut> gradients_;  // null in an inner scope
  std::unique_ptr<c10::DebugInfoGuard> guard_;
};

}  // namespace shardwise
