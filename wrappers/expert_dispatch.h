// wrappers/expert_dispatch.h: tokens sent to the ranks of their experts, and what the experts make of them sent back.
//
//   experts 0,1 on rank 0 and 2,3 on rank 1; tokens a b on rank 0 and c d on rank 1, two experts each:
//
//     a: 0 1    b: 2 0    c: 3 1    d: 3 0
//     rows      rank 0: a b d | a c      rank 1: b | c d           experts 0 | 1 and 2 | 3
//
// A token is sent once to each rank that has experts of it, and comes back once, as the sum over them: no capacity, nothing is dropped,
// nothing padded. The rows are those of dense_tokens[argsort(expert_ids.flatten(), stable=True) // n_choices].
#pragma once

#include "runtime/tensor/dtensor_impl.h"

#include <ATen/core/Tensor.h>

#include <memory>
#include <optional>

namespace shardwise {

class TokenRoute;

/// What dispatch_tokens() gives. Distributed on the mesh of the experts; rows and weights as Shard(0, sizes=...), sizes by the experts of each
/// rank.
struct RoutedTokens {
  at::Tensor rows;                   // [n_rows, features], ordered by expert, then by token, then by choice
  at::Tensor weights;                // [n_rows], the weight of each row; undefined where none were given
  at::Tensor expert_ids;             // [n_rows], int64, never decreasing
  at::Tensor num_tokens_per_expert;  // [n_experts], int64, Replicate()
  at::Tensor offs;                   // [n_experts], int32, Replicate(): the sums of those, as grouped_mm takes them
  std::shared_ptr<const TokenRoute> route;
  SpecPtr tokens;  // of the tokens as they were given; null for plain ones
};

/// Sends each token to the ranks of its experts. Differentiable in `tokens` and `weights`: gradients go back the same way.
///
/// Shapes: `tokens` [n_tokens, features], `expert_ids` [n_tokens, n_choices] or [n_tokens], integers, `weights` like `expert_ids`. Plain
/// ones are this rank's tokens, any number or none; distributed ones are sharded by token first, if they are not. `experts`: a DTensor
/// sharded by expert along dim 0, one of the experts' parameters, on a 1-D mesh. Distributed tokens live on it, or on one of several dims that
/// it is a slice of: those of the ranks along it go to its experts, and the other dims lay them out as they are.
/// Throws: c10::ValueError, alike on all ranks, for shapes and layouts that do not fit; c10::IndexError for an expert that does not exist;
/// c10::NotImplementedError on ranks outside the mesh.
/// Cost: one message of n_experts + n_ranks + 4 numbers between all ranks, and one per pair of ranks with the tokens, a number and a weight per row.
RoutedTokens dispatch_tokens(const at::Tensor& tokens, const at::Tensor& expert_ids,
                             const std::optional<at::Tensor>& weights, const at::Tensor& experts);

/// The sum of the rows of each token, where the token came from: laid out as the tokens were, plain where they were. Differentiable in
/// `rows`, which is [n_rows, any], laid out as `routed.rows`, or this rank's part of it as a plain tensor.
/// Sums are taken in float32 where rows are narrower. Throws: c10::ValueError, alike on all ranks, for rows that do not fit.
/// Cost: one message per pair of ranks; for plain rows one of 4 numbers between all ranks, before it.
at::Tensor combine_tokens(const at::Tensor& rows, const RoutedTokens& routed);

}  // namespace shardwise
