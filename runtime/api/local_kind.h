// runtime/api/local_kind.h: a tensor given as pieces with offsets gives such pieces back, and so does its gradient.
//
// The kind goes with the layout: `table * 2`, `zeros_like(table)` and `table.detach()` have it, `table.t()` has not.
#pragma once

#include "runtime/tensor/dtensor_impl.h"

namespace shardwise {

/// Gives `tensor` the kind. Where it becomes a leaf its gradients are laid out as it and get the kind too, through the
/// tensor's gradient hooks; hooks that Python sets take their place, and then only .grad of the same layout has the kind.
void keep_local_kind(const at::Tensor& tensor, LocalKind kind);

/// detach() drops what autograd knows of a tensor; this one keeps the kind. Called once, by register_dispatch().
void register_detach();

}  // namespace shardwise
