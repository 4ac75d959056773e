// runtime/dispatch/gradient_layout.h: after backward() the gradient of a leaf is laid out as the leaf: of a parameter sharded over n ranks
// each has 1/n of the gradient.
//
//   loss.backward();              // each gradient is reduced once, when it is complete
//   {
//     AccumulatedGradients scope;
//     for (const auto& batch : batches) loss_of(batch).backward();   // gradients are added up as they come, Partial say
//     scope.finish();                                                // and reduced once, together
//   }
#pragma once

#include "runtime/tensor/dtensor_impl.h"

#include <c10/util/ThreadLocalDebugInfo.h>
#include <torch/csrc/autograd/variable.h>

#include <memory>

namespace shardwise {

/// True for a leaf that requires a gradient and that lay_out_gradient() has not seen. Cost: two reads.
inline bool wants_gradient_layout(const DTensorImpl& tensor) {
  const auto* meta = static_cast<const torch::autograd::AutogradMeta*>(tensor.autograd_meta());
  return meta && meta->requires_grad_ && !tensor.has_gradient_layout();
}

/// From now on backward() gives `leaf` a .grad laid out as the leaf is at that time (replicated where it is Partial). Operators call it
/// with each leaf that they meet.
///
/// A gradient that takes less memory so, as that of a sharded parameter, is laid out when it comes, before the hooks that a program
/// registers see it. One that does not, as that of a replicated parameter, waits for the end of backward(), where all such share
/// messages; where .grad is there already, the new one is added to it as it comes. Gradients on another mesh stay there.
void lay_out_gradient(DTensorImpl& leaf);

class GradientsToLayOut;

/// While it lives, and for the backward passes that this thread starts, gradients are left as operators give them and added up so.
/// They nest: the outermost scope lays out.
class AccumulatedGradients {
 public:
  AccumulatedGradients();
  ~AccumulatedGradients();
  AccumulatedGradients(const AccumulatedGradients&) = delete;
  AccumulatedGradients& operator=(const AccumulatedGradients&) = delete;

  /// Lays out .grad of the leaves that gradients came to, in the order in which operators first met them; exchanges share messages. Collective
  /// over their meshes. Without it, as where an exception ends the scope, gradients stay as they are.
  void finish();

 private:
  std::shared_ptr<GradientsToLayOut> gradients_;  // null in an inner scope
  std::unique_ptr<c10::DebugInfoGuard> guard_;
};

}  // namespace shardwise
