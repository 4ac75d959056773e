// runtime/api/gradients.h: helpers that from_local, to_local and redistribute share: recording, layouts of gradients, detached pieces.
#pragma once

#include "plans/plan.h"
#include "runtime/tensor/dtensor_impl.h"

namespace shardwise {

/// True if autograd records operations on `tensor`.
inline bool records(const at::Tensor& tensor) { return tensor.requires_grad() && c10::GradMode::is_enabled(); }

/// True if nobody else holds the tensor or its pieces, so that a gradient may take its memory.
bool is_held_once(const at::Tensor& grad);

/// `grad` redistributed to the mesh and placements of `spec`. Slices of an expanded replica stay expanded. Undefined and plain gradients
/// are returned unchanged. If nobody else holds the gradient or its memory, an all-reduce writes its result there.
at::Tensor laid_out_as(const at::Tensor& grad, const Spec& spec, const PlanOptions& options = {});

/// Gives `tensor` the version counter of `other`, whose memory it shares: a write to either counts for both. Inference tensors have no
/// counter.
void share_version(const at::Tensor& tensor, const at::Tensor& other);

/// piece.detach(), without the dispatcher for a plain tensor. The result shares the piece's version counter: a write to either counts for
/// both.
at::Tensor detached(const at::Tensor& piece);
/// The same with the version counter of `owner`, the tensor that the piece belongs to.
at::Tensor detached(const at::Tensor& piece, const c10::TensorImpl& owner);
/// The same, except that the piece of a copied view keeps its own counter, because it is a copy.
at::Tensor detached(const at::Tensor& piece, const DTensorImpl& owner);
/// The piece to return to a program as its local tensor: the piece itself if it has the owner's version counter or can take it because
/// nobody else holds the piece; otherwise detached().
at::Tensor piece_for_caller(const at::Tensor& piece, const DTensorImpl& owner);

}  // namespace shardwise
