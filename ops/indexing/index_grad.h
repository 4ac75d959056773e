// ops/indexing/index_grad.h: the layout of the gradient of a lookup by index.
#pragma once

#include "runtime/tensor/spec.h"

#include <ATen/core/Tensor.h>

namespace shardwise {

/// Zeros for the gradient of a tensor with layout `source`, to which `grad` will be added by index. They have the source's layout. On mesh dims that
/// replicate the source they follow `grad`, so that it is not gathered: sharded alike along common dims, Partial along a dim that is summed. For an
/// EnumerableShard source the first dim is sharded.
///
/// `of_source`: per dim of `grad` the dim of the source, or -1. `symbols`: the source's (ops/support/dim_pieces.h).
at::Tensor zeros_for_grad(const Spec& source, const at::Tensor& grad, c10::ArrayRef<int64_t> of_source,
                          c10::SymIntArrayRef symbols = {});

/// The gradient of a tensor with layout `source` for gather(dim, index), from `grad`. `index` is not checked, because a check would be collective.
at::Tensor gather_grad(const at::Tensor& grad, const at::Tensor& index, const SpecPtr& source,
                       c10::SymIntArrayRef symbols, int64_t dim);

/// Redistributes `grad`, made by zeros_for_grad(), to the source's layout if that is an EnumerableShard.
at::Tensor in_pieces_of(const Spec& source, const at::Tensor& grad);

}  // namespace shardwise
