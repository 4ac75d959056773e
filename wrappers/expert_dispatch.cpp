#include "wrappers/expert_dispatch.h"

#include "ops/support/planned_values.h"
#include "placements/placement_list.h"
#include "runtime/api/dtensor.h"
#include "runtime/comm/agreement.h"
#include "runtime/comm/comm_scope.h"
#include "text/check.h"
#include "wrappers/token_route.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/cumsum.h>
#include <ATen/ops/tensor.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>

namespace shardwise {
namespace {

constexpr const char* kDispatch = "dispatch_tokens";
constexpr const char* kCombine = "combine_tokens";

std::string shape_of(const at::Tensor& tensor) { return fmt::format("[{}]", fmt::join(tensor.sizes(), ", ")); }

/// The dim of `mesh` that is the mesh of the experts, which is `mesh` itself or a slice of it. nullopt for other meshes. Equal on all ranks.
std::optional<int64_t> dim_of_experts(const MeshPtr& mesh, const MeshPtr& experts) {
  if (mesh == experts) return 0;
  if (experts->names().empty() || !mesh->has_dim(experts->names()[0])) return std::nullopt;
  return mesh->submesh(experts->names()) == experts ? std::optional(mesh->dim_of(experts->names()[0])) : std::nullopt;
}

/// The placements of tokens by row: their own, but sharded along the mesh dim of the experts, and with Shard(0) in place of Partial and of shards
/// along other dims.
Placements by_rows(const Spec& tokens, const MeshPtr& experts) {
  const int64_t dim = *dim_of_experts(tokens.mesh(), experts);
  Placements result = tokens.placements().vec();
  for (int64_t mesh_dim = 0; mesh_dim < tokens.mesh()->ndim(); ++mesh_dim) {
    Placement& placement = result[mesh_dim];
    if (placement.split_dim() != 0 && (mesh_dim == dim || !placement.is_whole())) placement = Placement::shard(0);
  }
  return result;
}

/// Checks facts that are equal on all ranks, except the numbers of tokens of plain tensors.
void check_arguments(const at::Tensor& tokens, const at::Tensor& expert_ids, const std::optional<at::Tensor>& weights,
                     const at::Tensor& experts) {
  SW_CHECK_VALUE(is_dtensor(experts) && experts.dim() > 0 && spec_of(experts)->mesh()->ndim() == 1 &&
                     spec_of(experts)->layout().splits(0),
                 "[{}] experts is {}: it must show which rank has which experts. Give a parameter of the experts, a "
                 "DTensor sharded by expert, as Shard(0) on a mesh of one dim (mesh[\"ep\"] of a larger one).",
                 kDispatch, is_dtensor(experts) ? to_string(*spec_of(experts)) : "a torch.Tensor");
  const MeshPtr& mesh = spec_of(experts)->mesh();
  const auto check_kind = [&](const char* name, const at::Tensor& tensor) {
    SW_CHECK_VALUE(
        is_dtensor(tensor) == is_dtensor(tokens),
        "[{}] tokens is a {} and {} is a {}. Give all as DTensors, or each rank's own part of all as torch.Tensors.",
        kDispatch, is_dtensor(tokens) ? "DTensor" : "torch.Tensor", name,
        is_dtensor(tensor) ? "DTensor" : "torch.Tensor");
    if (!is_dtensor(tensor)) return;
    if (!dim_of_experts(spec_of(tensor)->mesh(), mesh)) check_same_mesh(kDispatch, mesh, spec_of(tensor)->mesh());
    check_same_mesh(kDispatch, spec_of(tokens)->mesh(), spec_of(tensor)->mesh());
  };
  check_kind("expert_ids", expert_ids);
  if (weights) check_kind("weights", *weights);
  SW_CHECK_NOT_IMPLEMENTED(
      mesh->is_member(),
      "[{}] the number of rows that each rank gets depends on values, which rank {} does not have. Call it only on "
      "ranks of the mesh {}.",
      kDispatch, mesh->rank(), to_string(*mesh));
}

/// An error in this rank's own part, or "". All ranks compare the results before tokens are sent.
std::string mistake_in(const LocalTokens& local) {
  if (local.tokens.dim() != 2)
    return fmt::format("tokens of shape {} are not [n_tokens, features]. Flatten batch and sequence first",
                       shape_of(local.tokens));
  if (!c10::isIntegralType(local.expert_ids.scalar_type(), /*includeBool=*/false))
    return fmt::format("expert_ids are {}. Give integers", c10::toString(local.expert_ids.scalar_type()));
  if (local.expert_ids.dim() < 1 || local.expert_ids.dim() > 2 || local.expert_ids.size(0) != local.tokens.size(0))
    return fmt::format(
        "expert_ids of shape {} do not fit tokens of shape {}. Give each token's experts, [n_tokens, n_choices]",
        shape_of(local.expert_ids), shape_of(local.tokens));
  if (local.weights.defined() && local.weights.sizes() != local.expert_ids.sizes())
    return fmt::format("weights of shape {} do not fit expert_ids of shape {}. Give one weight per expert id",
                       shape_of(local.weights), shape_of(local.expert_ids));
  return "";
}

/// True if gradients are sent back, in which all ranks then take part.
bool takes_gradient(const at::Tensor& tensor) {
  return at::GradMode::is_enabled() && tensor.defined() && tensor.requires_grad();
}

/// A number that is equal on two ranks if their parts are of the same kind.
int64_t kind_of_part(const LocalTokens& local) {
  if (!mistake_in(local).empty()) return -1;
  const int64_t n_choices = local.expert_ids.dim() == 1 ? 1 : local.expert_ids.size(1);
  const int64_t of_weights = local.weights.defined() ? static_cast<int64_t>(local.weights.scalar_type()) + 1 : 0;
  const int64_t of_gradients = (takes_gradient(local.tokens) ? 2 : 0) + (takes_gradient(local.weights) ? 1 : 0);
  const int64_t of_tokens = local.tokens.size(1) * 64 + static_cast<int64_t>(local.tokens.scalar_type());
  return ((of_tokens * 64 + of_weights) * 4 + of_gradients) * 4096 + n_choices;
}

/// The numbers of rows per rank and expert, and of tokens, which all ranks exchange first.
class Counts {
 public:
  /// `told`: all ranks that have the tokens, including the experts' mesh. They all get the same error.
  Counts(const LocalTokens& local, const Spec& experts, const Group& told)
      : told_(told), group_(*experts.mesh()->group(0)), experts_(experts) {
    const int64_t n_experts = experts.sizes()[0];
    const std::string mistake = mistake_in(local);
    std::vector<int64_t> own{kind_of_part(local), 0, -1, 0};
    if (mistake.empty()) {
      own[3] = local.tokens.size(0);
      if (const at::Tensor ids = local.expert_ids.reshape({-1}); ids.numel() > 0 && !ids.is_meta()) {
        own[1] = ids.min().item<int64_t>();
        own[2] = ids.max().item<int64_t>();
      }
    }
    is_sound_ = own[0] >= 0 && own[1] >= 0 && own[2] < n_experts;
    own.resize(kHead + n_experts + group_.size(), 0);
    if (is_sound_) {
      sorting_ = SortedChoices::of(local, intervals(), n_experts);
      std::ranges::copy(sorting_.rows_per_expert, own.begin() + kHead);
      std::ranges::copy(sorting_.tokens_per_rank, own.begin() + kHead + n_experts);
    }
    all_ = gather_alike(told_, "tokens per expert", own, /*is_counted=*/true);
    check(mistake, n_experts);
  }

  const SortedChoices& sorting() const { return sorting_; }
  /// The experts of each rank.
  std::vector<Interval> intervals() const { return experts_.layout().shard_intervals(0); }
  int64_t rows_of(int64_t member, int64_t expert) const { return row_of(member)[kHead + expert]; }
  /// Tokens that `member` sends to this rank.
  int64_t tokens_from(int64_t member) const { return row_of(member)[kHead + experts_.sizes()[0] + group_.index]; }

 private:
  static constexpr int64_t kHead = 4;  // kind, lowest and highest expert, tokens

  const std::vector<int64_t>& row_of(int64_t member) const { return all_[told_.index_of(group_.ranks[member])]; }

  void check(const std::string& mistake, int64_t n_experts) const {
    for (int64_t i = 0; i < told_.size(); ++i) {
      SW_CHECK_VALUE(all_[i][0] >= 0, "[{}] {}.", kDispatch,
                     mistake.empty() ? fmt::format("shapes do not fit on rank {}, as its own error says. Give "
                                                   "[n_tokens, features] and [n_tokens, n_choices]",
                                                   told_.ranks[i])
                                     : mistake);
      SW_CHECK_VALUE(all_[i][0] == all_[0][0],
                     "[{}] features, dtypes, requires_grad or the number of experts per token differ between ranks {} "
                     "and {}. Give all ranks parts of one tensor.",
                     kDispatch, told_.ranks[0], told_.ranks[i]);
    }
    for (int64_t i = 0; i < told_.size(); ++i)
      SW_CHECK_INDEX(all_[i][1] >= 0 && all_[i][2] < n_experts,
                     "[{}] expert {} does not exist: rank {} asks for it, and there are {}. Use ids in [0, {}).",
                     kDispatch, all_[i][1] < 0 ? all_[i][1] : all_[i][2], told_.ranks[i], n_experts, n_experts);
  }

  const Group& told_;
  const Group& group_;
  const Spec& experts_;
  bool is_sound_ = false;
  SortedChoices sorting_;
  std::vector<std::vector<int64_t>> all_;  // by member of told_
};

LocalTokens local_part_of(const at::Tensor& tokens, const at::Tensor& expert_ids,
                          const std::optional<at::Tensor>& weights, const MeshPtr& experts) {
  if (!is_dtensor(tokens)) return {tokens, expert_ids, weights.value_or(at::Tensor())};
  const Placements like = by_rows(*spec_of(tokens), experts);
  const auto by_token = [&](const at::Tensor& tensor) { return to_local(redistribute(tensor, like)); };
  return {by_token(tokens), by_token(expert_ids), weights ? by_token(*weights) : at::Tensor()};
}

/// True if the rows of any rank take a gradient. A rank knows only its own plain rows, so ranks exchange this before they send rows.
/// Throws: c10::ValueError on all ranks if rows do not fit.
bool check_rows(const at::Tensor& rows, const Spec& spec) {
  constexpr const char* kWayOut =
      "Pass one row per row of routed.rows, in the same order: a DTensor, or this rank's part.";
  if (is_dtensor(rows)) {
    SW_CHECK_VALUE(rows.dim() == 2 && rows.size(0) == spec.sizes()[0] && spec_of(rows)->mesh() == spec.mesh(),
                   "[{}] rows of shape {} do not match routed.rows, {}. {}", kCombine, shape_of(rows), to_string(spec),
                   kWayOut);
    return takes_gradient(rows);
  }
  const Group& group = *spec.mesh()->group(0);
  const bool is_matrix = rows.dim() == 2;
  const std::vector<int64_t> own{is_matrix ? rows.size(0) : -1, is_matrix ? rows.size(1) : rows.dim(),
                                 static_cast<int64_t>(rows.scalar_type()), takes_gradient(rows)};
  const auto all = gather_alike(group, "compare rows of experts", own);
  const std::vector<int64_t>& first = all[0];
  const auto dtype = [](const auto& of_rank) { return c10::toString(static_cast<c10::ScalarType>(of_rank[2])); };
  const std::vector<Interval> of_ranks = spec.layout().shard_intervals(0);
  bool any_gradient = false;
  for (int64_t i = 0; i < group.size(); ++i) {
    if (!group.sends && i != group.index) continue;
    const int64_t n_rows = of_ranks[i].end - of_ranks[i].begin, rank = group.ranks[i];
    const std::vector<int64_t>& told = all[i];
    const std::string shape =
        told[0] < 0 ? fmt::format("{} dims", told[1]) : fmt::format("shape [{}, {}]", told[0], told[1]);
    SW_CHECK_VALUE(told[0] == n_rows,
                   "[{}] rows of {} do not match routed.rows of rank {}, which has {} rows of {}. {}", kCombine, shape,
                   rank, n_rows, to_string(spec), kWayOut);
    SW_CHECK_VALUE(
        told[1] == first[1] && told[2] == first[2],
        "[{}] rows are {} of {} features on rank {} and {} of {} on rank {}. Give all ranks parts of one tensor.",
        kCombine, dtype(first), first[1], group.ranks[0], dtype(told), told[1], rank);
    any_gradient |= told[3] != 0;
  }
  return any_gradient;
}

}  // namespace

RoutedTokens dispatch_tokens(const at::Tensor& tokens, const at::Tensor& expert_ids,
                             const std::optional<at::Tensor>& weights, const at::Tensor& experts) {
  const std::optional<at::Tensor> given = weights && weights->defined() ? weights : std::nullopt;
  check_arguments(tokens, expert_ids, given, experts);
  if (is_dtensor(tokens)) {  // checked as a whole, with the same result on all ranks
    const std::string mistake = mistake_in({tokens, expert_ids, given.value_or(at::Tensor())});
    SW_CHECK_VALUE(mistake.empty(), "[{}] {}.", kDispatch, mistake);
  }
  const CommScope scope(kDispatch);
  const Spec& of_experts = *spec_of(experts);
  const MeshPtr& mesh = of_experts.mesh();
  const LocalTokens local = local_part_of(tokens, expert_ids, given, mesh);
  if (mesh->is_meta()) note_planned(of_experts);
  const Counts counts(local, of_experts, is_dtensor(tokens) ? *spec_of(tokens)->mesh()->group() : *mesh->group(0));

  const GroupPtr group = mesh->group(0);
  const std::vector<Interval> of_ranks = counts.intervals();
  const Interval own = of_ranks[group->index];
  std::vector<int64_t> rows_per_rank(group->size(), 0), rows_per_expert(of_experts.sizes()[0], 0);
  std::vector<int64_t> tokens_from;
  std::vector<std::vector<int64_t>> rows_from;  // [rank][expert of this rank]
  for (int64_t i = 0; i < group->size(); ++i) {
    tokens_from.push_back(counts.tokens_from(i));
    auto& from = rows_from.emplace_back();
    for (int64_t expert = own.begin; expert < own.end; ++expert) from.push_back(counts.rows_of(i, expert));
    for (size_t rank = 0; rank < of_ranks.size(); ++rank)
      for (int64_t expert = of_ranks[rank].begin; expert < of_ranks[rank].end; ++expert) {
        rows_per_rank[rank] += counts.rows_of(i, expert);
        rows_per_expert[expert] += counts.rows_of(i, expert);
      }
  }

  RoutedTokens result;
  const auto [rows, row_weights, route] = send_first(group, local, counts.sorting(), tokens_from, rows_from);
  result.route = route;
  const int64_t n_rows = std::accumulate(rows_per_rank.begin(), rows_per_rank.end(), int64_t{0});
  const auto laid_out = [&](const at::Tensor& part) {
    Dims sizes(part.sizes());
    sizes[0] = n_rows;
    return from_local(part, mesh, {Placement::shard(0, rows_per_rank)}, {.shape = sizes});
  };
  result.rows = laid_out(rows);
  if (row_weights.defined()) result.weights = laid_out(row_weights);
  const at::Tensor n_per_expert = at::tensor(rows_per_expert, at::kLong).to(rows.device());
  result.num_tokens_per_expert = replica_of(n_per_expert, mesh);
  result.offs = replica_of(at::cumsum(n_per_expert, 0, at::kInt), mesh);
  result.expert_ids = laid_out(route->expert_of_rows(own.begin));
  if (is_dtensor(tokens)) result.tokens = spec_of(tokens);
  return result;
}

at::Tensor combine_tokens(const at::Tensor& rows, const RoutedTokens& routed) {
  TORCH_CHECK_VALUE(
      routed.route,
      "[combine_tokens] the route was not made by dispatch_tokens(). Give the value that dispatch_tokens() returned.");
  const CommScope scope(kCombine);
  const Spec& spec = *spec_of(routed.rows);
  const bool any_gradient = check_rows(rows, spec);
  at::Tensor local = is_dtensor(rows) ? to_local(redistribute(rows, spec.placements().vec())) : rows;
  const at::Tensor dispatched = to_local(routed.rows);
  // A rank without rows may pass a tensor without history. It needs a gradient too, because other ranks wait for it in the backward.
  if (any_gradient && at::GradMode::is_enabled() && !takes_gradient(local) && !takes_gradient(dispatched))
    local = local.detach().requires_grad_();
  const at::Tensor sums = send_back(routed.route, local, dispatched);
  if (!routed.tokens) return sums;
  const at::Tensor result = from_local(sums, routed.tokens->mesh(), by_rows(*routed.tokens, spec.mesh()),
                                       {.shape = Dims{routed.tokens->sizes()[0], sums.size(1)}});
  return redistribute(result, without_partial(routed.tokens->placements()));
}

}  // namespace shardwise
