#include "ops/embedding/lookup_plan.h"

#include "placements/partial.h"

#include <algorithm>

namespace shardwise {
namespace {

/// What one rank alone cuts is whole.
bool is_cut(const Spec& table, size_t m) {
  return table.placements()[m].is_sharded() && table.mesh()->size(static_cast<int64_t>(m)) > 1;
}
bool is_whole(const Spec& table, size_t m) {
  return table.placements()[m].is_replicate() || (table.placements()[m].is_sharded() && !is_cut(table, m));
}

bool cuts_rows(const Spec& table, size_t m) { return is_cut(table, m) && !table.placements()[m].is_shard(1); }

/// The dims along which ids are cut and rows elsewhere: where something must be sent.
std::vector<bool> common_cuts(const Spec& table, const Spec& ids) {
  std::vector<bool> common;
  for (size_t m = 0; m < table.placements().size(); ++m)
    common.push_back(is_cut(table, m) && ids.placements()[m].is_shard());
  return common;
}

/// Rows are asked for as one band of columns: all that the owners along `asks` have together.
bool are_bands(const Spec& table, const std::vector<bool>& asks) {
  bool cuts_in = false, cuts_out = false;
  for (size_t m = 0; m < asks.size(); ++m)
    if (table.placements()[m].is_shard(1)) (asks[m] ? cuts_in : cuts_out) = true;
  return !cuts_in || !cuts_out;
}

/// Seconds on the default link, which counts a latency per message and each way's bytes apart.
double seconds(int64_t n_messages, int64_t n_bytes) {
  const Link link;
  return static_cast<double>(n_messages) * link.latency_us * 1e-6 +
         static_cast<double>(n_bytes) / (link.gb_per_s * 1e9);
}

/// Ids gathered and results reduced, against counts, ids and rows sent to those concerned.
bool asking_is_faster(const Spec& table, const Spec& ids, int64_t n_results, const std::vector<bool>& asks) {
  int64_t n_ranks = 1;
  bool sums_rows = false;
  for (size_t m = 0; m < asks.size(); ++m) {
    if (!asks[m]) continue;
    n_ranks *= table.mesh()->size(static_cast<int64_t>(m));
    sums_rows |= cuts_rows(table, m);
  }
  const int64_t n_others = n_ranks - 1, n_ids = ids.numel(), n_own = n_ids / n_ranks;
  const int64_t row = table.sizes()[1] * table.element_bytes();
  const int64_t n_found = sums_rows ? n_results : n_results / n_ranks;  // rows that arrive: terms of all, or one's own
  const double reducing = seconds(2 * n_others, (n_ids - n_own) * ids.element_bytes() + n_found * row);
  const double asking = seconds(3 * n_others, n_own * (4 + row));
  return asking < reducing;
}

}  // namespace

bool LookupPlan::asks_any() const { return std::ranges::find(asks, true) != asks.end(); }

LookupPlan plan_lookup(const Spec& table, const Spec& ids, LookupExchange exchange, std::optional<int64_t> n_results) {
  LookupPlan plan;
  const std::vector<bool> common = common_cuts(table, ids);
  const bool any_common = std::ranges::find(common, true) != common.end();
  const bool brings = exchange != LookupExchange::kReduceScatter && !n_results;  // rows of ids that all have, to all
  plan.asks = common;
  if (!any_common && brings) {
    for (size_t m = 0; m < common.size(); ++m)
      plan.asks[m] = cuts_rows(table, m) || (is_cut(table, m) && exchange == LookupExchange::kAllToAll);
    plan.are_known = plan.asks_any();
  }
  const bool asks =
      plan.are_known || (any_common && exchange != LookupExchange::kReduceScatter && are_bands(table, common) &&
                         (exchange == LookupExchange::kAllToAll ||
                          asking_is_faster(table, ids, n_results.value_or(ids.numel()), common)));
  if (!asks) plan.asks.assign(common.size(), false);
  bool ids_moved = false;  // explicit sizes of inner cuts speak of the outer ones
  for (size_t m = 0; m < common.size(); ++m) {
    const Placement &of_table = table.placements()[m], &of_ids = ids.placements()[m];
    const bool stay = plan.asks[m] || is_whole(table, m);
    const Placement there = !stay                                  ? Placement::replicate()
                            : ids_moved && !of_ids.sizes().empty() ? Placement::shard(of_ids.dim())
                                                                   : of_ids;
    ids_moved |= of_ids.is_shard() && !stay;
    plan.ids.push_back(there);
    plan.found.push_back(stay                    ? there
                         : of_table.is_shard(1)  ? of_table.with_dim(ids.dim())
                         : of_table.is_sharded() ? Placement::partial()
                                                 : of_table);
    plan.result.push_back(of_ids.is_shard() || (brings && cuts_rows(table, m)) ? of_ids : plan.found.back());
  }
  return plan;
}

LookupBackwardPlan plan_lookup_backward(const Spec& table, const LookupPlan& plan, c10::ArrayRef<Placement> grad) {
  LookupBackwardPlan backward{plan.found, table.placements().vec()};
  for (size_t m = 0; m < backward.grad.size(); ++m) {
    Placement &of_grad = backward.grad[m], &of_table = backward.table[m];
    if (of_grad.is_partial()) of_grad = Placement::replicate();
    if (of_table.is_partial()) of_table = Placement::replicate();
    if (!of_table.is_replicate()) continue;
    if (of_grad.is_replicate() && grad[m].is_linear_partial()) of_grad = grad[m];
    if (of_grad.is_shard()) of_table = Placement::partial();
    if (of_grad.is_partial()) of_table = of_grad;
  }
  return backward;
}

}  // namespace shardwise
