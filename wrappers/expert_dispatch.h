// wrappers/expert_dispatch.h: sends tokens to the ranks of their experts, and the experts' results back.
//
//   experts 0,1 on rank 0 and 2,3 on rank 1; tokens a b on rank 0 and c d on rank 1, two experts each:
//
//     a: 0 1    b: 2 0    c: 3 1    d: 3 0
//     rows      rank 0: a b d | a c      rank 1: b | c d           experts 0 | 1 and 2 | 3
//
// A token is sent once to each rank that has some of its experts, and comes back once from each, as the sum over these experts. There is no capacity:
// nothing is dropped or padded. The rows are those of dense_tokens[argsort(expert_ids.flatten(), stable=True) // n_choices].
#pragma once

#include "runtime/tensor/dtensor_impl.h"

#include <ATen/core/Tensor.h>

#include <memory>
#include <optional>

namespace shardwise {

class TokenRoute;

/// The result of dispatch_tokens(), distributed on the mesh of the experts. Rows and weights are Shard(0, sizes=...), with the number of rows for
/// each rank's experts as sizes.
struct RoutedTokens {
  at::Tensor rows;                   // [n_rows, features], ordered by expert, then by token, then by choice
  at::Tensor weights;                // [n_rows], the weight of each row; undefined without weights
  at::Tensor expert_ids;             // [n_rows], int64, never decreasing
  at::Tensor num_tokens_per_expert;  // [n_experts], int64, Replicate()
  at::Tensor offs;                   // [n_experts], int32, Replicate(): running sums of the line above, for grouped_mm
  std::shared_ptr<const TokenRoute> route;
  SpecPtr tokens;  // of the caller's tokens; null for plain tokens
};

/// Sends each token to the ranks of its experts. Differentiable in `tokens` and `weights`: gradients go back the same way.
///
/// Shapes: `tokens` [n_tokens, features], `expert_ids` [n_tokens, n_choices] or [n_tokens], integers, `weights` like `expert_ids`. Plain tensors are
/// this rank's tokens, any number or none. Distributed tensors are sharded by token first, if they are not. `experts`: one of the experts'
/// parameters, a DTensor sharded by expert along dim 0 on a 1-D mesh. Distributed tokens are on that mesh, or on a mesh of several dims that it is a
/// slice of: tokens are then exchanged along that mesh dim, and keep their layout on all other mesh dims.
/// Throws: c10::ValueError, alike on all ranks, for shapes and layouts that do not fit; c10::IndexError for an expert that does not exist;
/// c10::NotImplementedError on ranks outside the mesh.
/// Cost: one message of n_experts + n_ranks + 4 numbers between all ranks, and one message per pair of ranks with the tokens, and a number and a
/// weight per row.
RoutedTokens dispatch_tokens(const at::Tensor& tokens, const at::Tensor& expert_ids,
                             const std::optional<at::Tensor>& weights, const at::Tensor& experts);

/// The sum of the rows of each token, on the rank that the token came from: laid out as the tokens were, or plain if they were plain. Differentiable
/// in `rows`, which is [n_rows, any], laid out as `routed.rows`, or this rank's part of such a tensor as a plain tensor. Sums are computed in float32
/// if rows are narrower. Throws: c10::ValueError, alike on all ranks, for rows that do not fit.
/// Cost: one message per pair of ranks; for plain rows, before that, one message of 4 numbers between all ranks.
at::Tensor combine_tokens(const at::Tensor& rows, const RoutedTokens& routed);

}  // namespace shardwise
