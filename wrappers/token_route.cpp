#include "wrappers/token_route.h"

#include "ops/support/planned_values.h"
#include "runtime/redistribute/packed_messages.h"
#include "runtime/tensor/autograd_node.h"
#include "runtime/tensor/below_autograd.h"

#include <ATen/ops/_unique.h>
#include <ATen/ops/argsort.h>
#include <ATen/ops/bincount.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include <numeric>

namespace shardwise {
namespace {

using torch::autograd::collect_next_edges;
using torch::autograd::variable_list;
using RoutePtr = std::shared_ptr<const TokenRoute>;

int64_t sum_of(const std::vector<int64_t>& numbers) {
  return std::accumulate(numbers.begin(), numbers.end(), int64_t{0});
}

std::vector<int64_t> numbers_in(const at::Tensor& tensor) {
  const at::Tensor numbers = tensor.to(at::kCPU, at::kLong).contiguous();
  return {numbers.const_data_ptr<int64_t>(), numbers.const_data_ptr<int64_t>() + numbers.numel()};
}

/// Runs of elements of `sent` for each member of the group, and places in `received` for the runs of each member.
struct Runs {
  at::Tensor sent, received;
  const std::vector<int64_t>& out;
  const std::vector<int64_t>& in;
};

/// Sends one message between each pair of ranks that have elements for each other.
void exchange_runs(const Group& group, c10::Device device, const std::vector<Runs>& all) {
  PackedMessages messages(device);
  for (const Runs& runs : all) {
    int64_t next_out = 0, next_in = 0;
    for (int64_t i = 0; i < group.size(); ++i) {
      const at::Tensor sent = runs.sent.narrow(0, next_out, runs.out[i]);
      const at::Tensor place = runs.received.narrow(0, next_in, runs.in[i]);
      next_out += runs.out[i];
      next_in += runs.in[i];
      if (i == group.index) {
        place.copy_(sent);
        continue;
      }
      if (sent.numel() > 0) messages.send(group.ranks[i], sent);
      if (place.numel() > 0) messages.receive(group.ranks[i], place);
    }
  }
  messages.start(group);
  messages.finish();
}

at::Tensor empty_rows(int64_t n, const at::Tensor& like) {
  Dims sizes(like.sizes());
  sizes[0] = n;
  return at::empty(sizes, like.options());
}

/// [n, features] with `rows` added at `places`, in float32 at least.
at::Tensor sums_at(int64_t n, const at::Tensor& places, const at::Tensor& rows) {
  const bool is_narrow = rows.scalar_type() == at::kHalf || rows.scalar_type() == at::kBFloat16;
  const at::Tensor terms = is_narrow ? rows.to(at::kFloat) : rows;
  Dims sizes(rows.sizes());
  sizes[0] = n;
  return at::zeros(sizes, terms.options()).index_add_(0, places, terms).to(rows.scalar_type());
}

/// Puts `values` at `places`, a permutation.
at::Tensor permuted_to(const at::Tensor& places, const at::Tensor& values) {
  return at::empty_like(values).index_copy_(0, places, values);
}

std::pair<at::Tensor, at::Tensor> mapped(const RoutePtr& route, bool to_experts, const at::Tensor& rows,
                                         const at::Tensor& weights);

/// The transpose of a route's direction. Missing gradients on this rank are sent as zeros, because other ranks wait for them.
struct RouteBackward final : torch::autograd::Node {
  RoutePtr route;
  bool was_to_experts = false;
  bool with_rows = false, with_weights = false;

  variable_list apply(variable_list&& grads) override {
    const auto grad = [&](size_t i, bool is_wanted) {
      if (!is_wanted) return at::Tensor();
      return grads[i].defined() ? grads[i] : input_metadata(i).zeros_like();
    };
    const auto [rows, weights] = mapped(route, !was_to_experts, grad(0, with_rows), grad(1, with_weights));
    variable_list result{rows, weights};
    result.resize(num_outputs());
    return result;
  }
  std::string name() const override { return was_to_experts ? "DispatchTokensBackward" : "CombineTokensBackward"; }
};

bool records_grad(const at::Tensor& tensor) {
  return c10::GradMode::is_enabled() && tensor.defined() && tensor.requires_grad();
}

/// Gives `rows` and `weights`, which were computed from `inputs`, their derivative.
void set_derivative(const RoutePtr& route, bool to_experts, const variable_list& inputs, const at::Tensor& rows,
                    const at::Tensor& weights) {
  bool any = false;
  for (const at::Tensor& input : inputs) any |= records_grad(input);
  if (!any) return;
  auto node = make_node<RouteBackward>();
  node->route = route;
  node->was_to_experts = to_experts;
  node->with_rows = rows.defined() && torch::autograd::isDifferentiableType(rows.scalar_type());
  node->with_weights = weights.defined() && records_grad(inputs[1]);
  node->set_next_edges(collect_next_edges(inputs));
  if (node->with_rows)
    torch::autograd::set_history(rows, node);
  else
    node->add_input_metadata(torch::autograd::Node::undefined_input());
  if (weights.defined() && node->with_weights) torch::autograd::set_history(weights, node);
}

std::pair<at::Tensor, at::Tensor> mapped(const RoutePtr& route, bool to_experts, const at::Tensor& rows,
                                         const at::Tensor& weights) {
  const auto result = [&] {
    const BelowAutograd guard;
    return to_experts ? route->to_experts(rows, weights) : route->to_tokens(rows, weights);
  }();
  set_derivative(route, to_experts, {rows, weights}, result.first, result.second);
  return result;
}

}  // namespace

SortedChoices SortedChoices::of(const LocalTokens& local, const std::vector<Interval>& intervals, int64_t n_experts) {
  const BelowAutograd guard;
  const int64_t n_choices = local.expert_ids.dim() == 1 ? 1 : local.expert_ids.size(1);
  const at::Tensor ids = local.expert_ids.is_meta() ? planned_experts(local.expert_ids.size(0), n_choices, n_experts)
                                                    : local.expert_ids.reshape({-1}).to(at::kLong);
  SortedChoices result;
  result.choices = at::argsort(ids, /*stable=*/true, /*dim=*/0);
  result.rows_per_expert = numbers_in(at::bincount(ids, {}, n_experts));
  const at::Tensor tokens = n_choices == 0 ? result.choices : result.choices.div(n_choices, /*rounding_mode=*/"floor");
  std::vector<at::Tensor> of_ranks{tokens.slice(0, 0, 0)}, slots{tokens.slice(0, 0, 0)};
  int64_t begin = 0;
  for (const Interval& experts : intervals) {
    int64_t n = 0;
    for (int64_t expert = experts.begin; expert < experts.end; ++expert) n += result.rows_per_expert[expert];
    const auto [distinct, places] = at::_unique(tokens.narrow(0, begin, n), /*sorted=*/true, /*return_inverse=*/true);
    of_ranks.push_back(distinct);
    slots.push_back(places);
    result.rows_per_rank.push_back(n);
    result.tokens_per_rank.push_back(distinct.numel());
    begin += n;
  }
  const c10::Device device = local.expert_ids.device();
  result.choices = result.choices.to(device);
  result.tokens = at::cat(of_ranks).to(device);
  result.slots = at::cat(slots).to(device, at::kInt);
  return result;
}

std::tuple<at::Tensor, at::Tensor, RoutePtr> send_first(const GroupPtr& group, const LocalTokens& local,
                                                        const SortedChoices& sorting,
                                                        const std::vector<int64_t>& tokens_from,
                                                        const std::vector<std::vector<int64_t>>& rows_from) {
  const auto route = std::make_shared<TokenRoute>();
  route->group_ = group;
  route->n_tokens_ = local.tokens.size(0);
  route->choices_shape_ = Dims(local.expert_ids.sizes());
  route->sent_tokens_ = sorting.tokens;
  route->sent_choices_ = sorting.choices;
  route->tokens_out_ = sorting.tokens_per_rank;
  route->choices_out_ = sorting.rows_per_rank;
  route->tokens_in_ = tokens_from;
  const size_t n_own = rows_from.empty() ? 0 : rows_from[0].size();
  route->rows_per_expert_.assign(n_own, 0);
  for (const auto& from : rows_from) {
    route->choices_in_.push_back(sum_of(from));
    for (size_t expert = 0; expert < n_own; ++expert) route->rows_per_expert_[expert] += from[expert];
  }
  const int64_t n_rows = sum_of(route->choices_in_);

  // Choices arrive ordered by rank, then by expert. Rows are ordered by expert, then by rank.
  std::vector<int64_t> choice_of_row, first_token;
  std::vector<int64_t> next_choice, next_token;
  int64_t n_choices = 0, n_tokens = 0;
  for (size_t rank = 0; rank < rows_from.size(); ++rank) {
    next_choice.push_back(n_choices);
    next_token.push_back(n_tokens);
    n_choices += route->choices_in_[rank];
    n_tokens += tokens_from[rank];
  }
  for (size_t expert = 0; expert < n_own; ++expert)
    for (size_t rank = 0; rank < rows_from.size(); ++rank)
      for (int64_t i = 0; i < rows_from[rank][expert]; ++i) {
        choice_of_row.push_back(next_choice[rank]++);
        first_token.push_back(next_token[rank]);
      }
  const c10::Device device = local.tokens.device();
  route->choice_of_row_ = at::tensor(choice_of_row, at::kLong).to(device);

  at::Tensor rows, weights;
  {
    const BelowAutograd guard;
    const at::Tensor arrived = empty_rows(n_tokens, local.tokens);
    const at::Tensor slots = at::empty({n_rows}, sorting.slots.options());
    std::vector<Runs> runs{
        {local.tokens.index_select(0, sorting.tokens), arrived, route->tokens_out_, route->tokens_in_},
        {sorting.slots, slots, route->choices_out_, route->choices_in_}};
    at::Tensor arrived_weights;
    if (local.weights.defined()) {
      const at::Tensor sent = local.weights.reshape({-1}).index_select(0, sorting.choices);
      arrived_weights = empty_rows(n_rows, sent);
      runs.push_back({sent, arrived_weights, route->choices_out_, route->choices_in_});
    }
    exchange_runs(*group, device, runs);
    route->token_of_row_ =
        slots.index_select(0, route->choice_of_row_).to(at::kLong) + at::tensor(first_token, at::kLong).to(device);
    rows = arrived.index_select(0, route->token_of_row_);
    if (arrived_weights.defined()) weights = arrived_weights.index_select(0, route->choice_of_row_);
  }
  set_derivative(route, /*to_experts=*/true, {local.tokens, local.weights}, rows, weights);
  return {rows, weights, route};
}

std::pair<at::Tensor, at::Tensor> TokenRoute::to_experts(const at::Tensor& tokens, const at::Tensor& weights) const {
  std::vector<Runs> runs;
  at::Tensor arrived, arrived_weights;
  if (tokens.defined()) {
    arrived = empty_rows(sum_of(tokens_in_), tokens);
    runs.push_back({tokens.index_select(0, sent_tokens_), arrived, tokens_out_, tokens_in_});
  }
  if (weights.defined()) {
    const at::Tensor sent = weights.reshape({-1}).index_select(0, sent_choices_);
    arrived_weights = empty_rows(choice_of_row_.numel(), sent);
    runs.push_back({sent, arrived_weights, choices_out_, choices_in_});
  }
  exchange_runs(*group_, sent_tokens_.device(), runs);
  return {arrived.defined() ? arrived.index_select(0, token_of_row_) : arrived,
          arrived_weights.defined() ? arrived_weights.index_select(0, choice_of_row_) : arrived_weights};
}

std::pair<at::Tensor, at::Tensor> TokenRoute::to_tokens(const at::Tensor& rows, const at::Tensor& weights) const {
  std::vector<Runs> runs;
  at::Tensor arrived, arrived_weights;
  if (rows.defined()) {
    const at::Tensor sums = sums_at(sum_of(tokens_in_), token_of_row_, rows);
    arrived = empty_rows(sum_of(tokens_out_), sums);
    runs.push_back({sums, arrived, tokens_in_, tokens_out_});
  }
  if (weights.defined()) {
    const at::Tensor sent = permuted_to(choice_of_row_, weights);
    arrived_weights = empty_rows(sent_choices_.numel(), sent);
    runs.push_back({sent, arrived_weights, choices_in_, choices_out_});
  }
  exchange_runs(*group_, sent_tokens_.device(), runs);
  return {
      arrived.defined() ? sums_at(n_tokens_, sent_tokens_, arrived) : arrived,
      arrived_weights.defined() ? permuted_to(sent_choices_, arrived_weights).view(choices_shape_) : arrived_weights};
}

at::Tensor TokenRoute::expert_of_rows(int64_t first) const {
  std::vector<int64_t> ids;
  for (size_t i = 0; i < rows_per_expert_.size(); ++i)
    ids.insert(ids.end(), rows_per_expert_[i], first + static_cast<int64_t>(i));
  return at::tensor(ids, at::kLong).to(sent_tokens_.device());
}

at::Tensor send_back(const RoutePtr& route, const at::Tensor& rows, const at::Tensor& dispatched) {
  const at::Tensor sums = [&] {
    const BelowAutograd guard;
    return route->to_tokens(rows, {}).first;
  }();
  set_derivative(route, /*to_experts=*/false, {rows, dispatched}, sums, {});
  return sums;
}

}  // namespace shardwise
