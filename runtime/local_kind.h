// runtime/local_kind.h: a tensor given as pieces with offsets gives such pieces back, and so does its gradient.
//
// The kind goes with the layout: `table * 2`, `zeros_like(table)` and `table.detach()` have it, `table.t()` has not.
#pragma once

#include "runtime/dtensor_impl.h"

namespace shardwise {

/// Gives `tensor` the kind; where it becomes a leaf, its gradients of the same layout get it too (through the tensor's gradient
/// hooks: user hooks set from Python take their place for torch.autograd.grad, not for .grad).
void keep_local_kind(const at::Tensor& tensor, LocalKind kind);

/// detach() drops what autograd knows of a tensor; this one keeps the kind. Called once, by register_dispatch().
void register_detach();

}  // namespace shardwise
