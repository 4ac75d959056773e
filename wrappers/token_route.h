// wrappers/token_route.h: the tokens that each rank sends to each other rank, and the order of arriving rows by expert; on plain tensors.
#pragma once

#include "placements/box.h"
#include "runtime/comm/group.h"

#include <ATen/core/Tensor.h>

#include <memory>
#include <tuple>
#include <utility>
#include <vector>

namespace shardwise {

/// This rank's tokens [n, features], the experts of each token, [n, n_choices] or [n], and weights of the same shape, or undefined.
struct LocalTokens {
  at::Tensor tokens;
  at::Tensor expert_ids;
  at::Tensor weights;
};

/// The n * n_choices choices of this rank's tokens, ordered by expert.
struct SortedChoices {
  at::Tensor choices;                    // numbers of choices, by expert
  at::Tensor tokens;                     // tokens to send, by receiving rank, each once per rank
  at::Tensor slots;                      // int32, per choice: position of its token among those sent to its rank
  std::vector<int64_t> rows_per_expert;  // of all experts
  std::vector<int64_t> rows_per_rank;    // of all ranks
  std::vector<int64_t> tokens_per_rank;  // distinct tokens

  /// `intervals`: the experts of each rank, in order. Pre: ids in [0, n_experts).
  static SortedChoices of(const LocalTokens& local, const std::vector<Interval>& intervals, int64_t n_experts);
};

/// A linear map between the ranks' tokens and the experts' rows, and between their weights; each direction is the other's transpose.
class TokenRoute {
 public:
  /// Sends tokens and weights to the experts: returns rows [n_rows, features] and weights [n_rows] of this rank's experts. Either may be undefined,
  /// on all ranks alike.
  std::pair<at::Tensor, at::Tensor> to_experts(const at::Tensor& tokens, const at::Tensor& weights) const;
  /// The sum of each token's rows, [n_tokens, features], and the weights in the order of the choices.
  std::pair<at::Tensor, at::Tensor> to_tokens(const at::Tensor& rows, const at::Tensor& weights) const;
  /// The expert of each of this rank's rows. `first`: this rank's first expert.
  at::Tensor expert_of_rows(int64_t first) const;

 private:
  friend std::tuple<at::Tensor, at::Tensor, std::shared_ptr<const TokenRoute>> send_first(
      const GroupPtr& group, const LocalTokens& local, const SortedChoices& sorting,
      const std::vector<int64_t>& tokens_from, const std::vector<std::vector<int64_t>>& rows_from);

  GroupPtr group_;
  int64_t n_tokens_ = 0;
  Dims choices_shape_;                     // of expert_ids
  at::Tensor sent_tokens_, sent_choices_;  // as SortedChoices has them
  at::Tensor token_of_row_;                // per row: position of its token among the arrivals
  at::Tensor choice_of_row_;               // per row: position of its choice among the arrivals
  std::vector<int64_t> tokens_out_, tokens_in_, choices_out_, choices_in_;  // by member of the group
  std::vector<int64_t> rows_per_expert_;                                    // of this rank's experts
};

/// Sends tokens for the first time, with the numbers from which each rank builds its route. Returns rows, weights and the route. Differentiable.
std::tuple<at::Tensor, at::Tensor, std::shared_ptr<const TokenRoute>> send_first(
    const GroupPtr& group, const LocalTokens& local, const SortedChoices& sorting,
    const std::vector<int64_t>& tokens_from, const std::vector<std::vector<int64_t>>& rows_from);

/// The sum of each token's rows, on the token's rank. Differentiable. `dispatched`: the rows from send_first(). Its backward runs on this rank even
/// if `rows` do not depend on it, as on a rank without rows.
at::Tensor send_back(const std::shared_ptr<const TokenRoute>& route, const at::Tensor& rows,
                     const at::Tensor& dispatched);

}  // namespace shardwise
