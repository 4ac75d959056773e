// ops/support/batch_pieces.h: the layers that run as torch's own on each rank's batches, in place of a composition of operators.
#pragma once

#include "runtime/tensor/spec.h"

#include <ATen/core/Tensor.h>

namespace shardwise {

// The answers are the same on all ranks, also on those outside of the mesh, so that all ranks choose alike.

/// True if the rank's only piece can stand for the tensor in torch's layer. False on meta and in graphs, where operators are counted and traced.
bool has_plain_piece(const at::Tensor& tensor, const Spec& input);
/// The same for a tensor that each rank has whole.
bool has_whole_piece(const at::Tensor& tensor, const Spec& input);
/// The same for the layer's input, [batches, steps, features] in any order, of which at most batches are sharded.
bool has_batch_piece(const at::Tensor& input, int64_t batch_dim);

}  // namespace shardwise
