// runtime/comm/outside_transforms.h: work within torch.func's transforms that is not part of what they transform.
#pragma once

#include <c10/core/impl/LocalDispatchKeySet.h>

namespace shardwise {

/// During its lifetime operators of this thread bypass the transforms of torch.func, which otherwise wrap new tensors, so that their memory cannot be
/// read.
class OutsideTransforms {
 private:
  c10::impl::ExcludeDispatchKeyGuard transforms_{c10::DispatchKeySet(
      {c10::DispatchKey::FuncTorchDynamicLayerFrontMode, c10::DispatchKey::FuncTorchDynamicLayerBackMode})};
};

}  // namespace shardwise
