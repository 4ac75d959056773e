// runtime/api/gradients.h: what from_local, to_local and redistribute share: who records, how gradients are laid out, detached pieces.
#pragma once

#include "plans/plan.h"
#include "runtime/tensor/dtensor_impl.h"

namespace shardwise {

/// True where autograd records what is done to `tensor`.
inline bool records(const at::Tensor& tensor) { return tensor.requires_grad() && c10::GradMode::is_enabled(); }

/// How gradients come to a tensor of `spec`: laid out as it, replicated where it is Partial. Most often `spec` itself.
SpecPtr spec_of_grad(const SpecPtr& spec);

/// The gradient of a tensor of `spec`: the same values laid out as it. Undefined and plain gradients stay as they are.
at::Tensor laid_out_as(const at::Tensor& grad, const Spec& spec);
at::Tensor laid_out_as(const at::Tensor& grad, const Spec& spec, const PlanOptions& options);

/// Gives `tensor` the version counter of `other`, whose memory it shares: writes to either count for both. Inference tensors have none.
void share_version(const at::Tensor& tensor, const at::Tensor& other);

/// piece.detach(), without the dispatcher for a plain tensor. It shares the piece's version counter: writes to either count for both.
at::Tensor detached(const at::Tensor& piece);
/// The same, with the version counter of `owner`, the tensor of which it is a piece.
at::Tensor detached(const at::Tensor& piece, const c10::TensorImpl& owner);
/// The same; the piece of a copied view is a copy and keeps its own counter.
at::Tensor detached(const at::Tensor& piece, const DTensorImpl& owner);
/// What a program gets as its local tensor: the piece itself where it has the owner's counter, or can be given it because nobody else
/// holds it; else detached().
at::Tensor piece_for_caller(const at::Tensor& piece, const DTensorImpl& owner);

}  // namespace shardwise
