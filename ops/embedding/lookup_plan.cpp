#include "ops/embedding/lookup_plan.h"

#include "placements/placement_list.h"
#include "plans/traffic.h"
#include "runtime/tensor/unused_meshes.h"

#include <algorithm>
#include <limits>

namespace shardwise {
namespace {

/// A shard on a mesh dim of one rank counts as whole.
bool is_divided(const Spec& table, size_t m) {
  return table.placements()[m].divides() && table.mesh()->size(static_cast<int64_t>(m)) > 1;
}
bool is_whole(const Spec& table, size_t m) { return !table.placements()[m].terms() && !is_divided(table, m); }
bool divides_rows(const Spec& table, size_t m) {
  return is_divided(table, m) && table.placements()[m].split_dim() != 1;
}

/// The mesh dims along which both ids and table are sharded, and something must be sent.
std::vector<bool> common_shards(const Spec& table, const Spec& ids) {
  std::vector<bool> common(table.placements().size());
  for (size_t m = 0; m < common.size(); ++m) common[m] = is_divided(table, m) && ids.placements()[m].divides();
  return common;
}

/// True if the owners along `along` together have one interval of columns, so that rows can be requested as one block.
bool have_adjoining_columns(const Spec& table, const std::vector<bool>& along) {
  bool shards_inside = false, shards_outside = false;
  for (size_t m = 0; m < along.size(); ++m)
    if (table.placements()[m].split_dim() == 1) (along[m] ? shards_inside : shards_outside) = true;
  return !shards_inside || !shards_outside;
}

/// The ranks that a rank exchanges with, counted by link. The link to a rank is that of the first mesh dim in which the coordinates differ.
struct Partners {
  std::vector<std::pair<Link, int64_t>> by_link;
  int64_t n_ranks = 1;  // this one included

  Partners(const DeviceMesh& mesh, const std::vector<bool>& along, const std::vector<Link>& links) {
    for (size_t m = along.size(); m-- > 0;) {
      if (!along[m]) continue;
      const int64_t extent = mesh.size(static_cast<int64_t>(m));
      by_link.emplace_back(link_along(links, m), (extent - 1) * n_ranks);
      n_ranks *= extent;
    }
  }

  /// The time to send `n_messages` to each partner and to receive `n_bytes` from all partners together, in equal parts.
  double seconds(int64_t n_messages, int64_t n_bytes) const {
    double sum = 0;
    for (const auto& [link, n] : by_link) sum += transfer_seconds(link, n_messages * n, n_bytes * n / (n_ranks - 1));
    return sum;
  }
};

/// Messages to each partner. Reduce-scatter: ids (all-gather), rows. All-to-all: counts, ids, rows, see ops/embedding/row_exchange.h.
constexpr int64_t kReduceScatterMessages = 2;
constexpr int64_t kAllToAllMessages = 3;

bool all_to_all_is_faster(const Spec& table, const Spec& ids, int64_t n_results, const std::vector<bool>& along,
                          const std::vector<Link>& links) {
  const Partners partners(*table.mesh(), along, links);
  bool sums_rows = false;
  for (size_t m = 0; m < along.size(); ++m) sums_rows |= along[m] && divides_rows(table, m);
  const int64_t n_ids = ids.numel(), n_own = n_ids / partners.n_ranks;
  const int64_t row_bytes = table.sizes()[1] * table.element_bytes();
  const int64_t id_bytes = table.sizes()[0] <= std::numeric_limits<int32_t>::max() ? 4 : 8;  // ids in messages
  // Rows that the reduce-scatter receives: a term of each result from all partners or, if columns are sharded, a part from each.
  const int64_t n_received = sums_rows ? n_results : n_results / partners.n_ranks;
  const double reduce_scatter =
      partners.seconds(kReduceScatterMessages, (n_ids - n_own) * ids.element_bytes() + n_received * row_bytes);
  return partners.seconds(kAllToAllMessages, n_own * (id_bytes + row_bytes)) < reduce_scatter;
}

/// For equal ids: true if a move of the result is faster when each row is sent once. That takes one more message, which compares the ids, and saves
/// the terms that are zeros: at least these bytes, wherever the result moves and however many of the ids are equal.
bool sending_rows_is_faster(const Spec& table, const Spec& ids, const std::vector<bool>& along,
                            const std::vector<Link>& links) {
  const Partners partners(*table.mesh(), along, links);
  if (partners.n_ranks == 1) return true;
  const int64_t n_bytes = ids.numel() * table.sizes()[1] * table.element_bytes();
  return partners.seconds(/*n_messages=*/1, 0) < partners.seconds(0, n_bytes - n_bytes / partners.n_ranks);
}

LookupPlan make_plan(const Spec& table, const Spec& ids, const LookupOptions& options,
                     std::optional<int64_t> n_results) {
  LookupPlan plan;
  const bool wants_all_to_all = options.exchange == LookupExchange::kAllToAll;
  const bool may_exchange = options.exchange != LookupExchange::kReduceScatter;
  const std::vector<bool> common = common_shards(table, ids);
  const bool any_common = std::ranges::find(common, true) != common.end();
  plan.exchange_along = common;
  if (!any_common && may_exchange && !n_results) {
    for (size_t m = 0; m < common.size(); ++m) plan.exchange_along[m] = divides_rows(table, m);
    plan.ids_are_equal = plan.exchanges_rows() &&
                         (wants_all_to_all || sending_rows_is_faster(table, ids, plan.exchange_along, options.links));
  }
  const bool exchanges =
      plan.ids_are_equal ||
      (any_common && may_exchange && have_adjoining_columns(table, common) &&
       (wants_all_to_all || all_to_all_is_faster(table, ids, n_results.value_or(ids.numel()), common, options.links)));
  if (!exchanges) plan.exchange_along.assign(common.size(), false);
  bool ids_moved = false, columns_moved = false;  // explicit sizes of an inner shard depend on the outer ones
  for (size_t m = 0; m < common.size(); ++m) {
    const Placement &of_table = table.placements()[m], &of_ids = ids.placements()[m];
    const bool has_columns = of_table.split_dim() == 1;
    const bool stay = (plan.exchange_along[m] && !plan.ids_are_equal) || is_whole(table, m);
    const Placement there = !stay                                  ? Placement::replicate()
                            : ids_moved && !of_ids.sizes().empty() ? Placement::shard(of_ids.dim())
                                                                   : of_ids;
    ids_moved |= of_ids.divides() && !stay;
    plan.ids.push_back(there);
    plan.found.push_back(stay                 ? there
                         : has_columns        ? of_table.with_dim(ids.dim())
                         : of_table.divides() ? Placement::partial()
                                              : of_table);
    const Placement& found = plan.found.back();
    plan.result.push_back(of_ids.divides() ? of_ids
                          : columns_moved && found.split_dim() == ids.dim() && !found.is_chunk()
                              ? Placement::shard(ids.dim())
                              : found);
    columns_moved |= !stay && has_columns && of_ids.divides();
  }
  Dims sizes(ids.sizes());
  sizes.push_back(table.sizes()[1]);
  plan.rows = Spec::intern(table.mesh(), sizes, plan.found, row_major_strides(sizes), table.dtype());
  return plan;
}

/// The arguments of a plan.
struct Planned {
  SpecPtr table, ids;
  LookupExchange exchange = LookupExchange::kAuto;
  std::vector<Link> links;
  std::optional<int64_t> n_results;
  bool operator==(const Planned&) const = default;
};

constexpr size_t kCacheSlots = 256;  // direct-mapped: a plan replaces another one of the same hash

}  // namespace

bool LookupPlan::exchanges_rows() const { return std::ranges::find(exchange_along, true) != exchange_along.end(); }

bool LookupPlan::splits_ids() const {
  for (size_t m = 0; m < ids.size(); ++m)
    if (exchange_along[m] && !ids[m].divides()) return false;
  return exchanges_rows();
}

LookupPlanPtr plan_lookup(const SpecPtr& table, const SpecPtr& ids, const LookupOptions& options,
                          std::optional<int64_t> n_results) {
  static thread_local std::vector<std::pair<Planned, LookupPlanPtr>> plans(kCacheSlots);
  const auto hash = (reinterpret_cast<uintptr_t>(table.get()) * 31 + reinterpret_cast<uintptr_t>(ids.get())) *
                    uintptr_t{0x9E3779B97F4A7C15};
  auto& [known, plan] = plans[hash >> 56];
  Planned wanted{table, ids, options.exchange, options.links, n_results};
  if (plan && known == wanted) return plan;
  drop_unused([](const UnusedMeshes& unused) {
    for (auto& place : plans)
      if (unused.has(place.first.table) || unused.has(place.first.ids)) place = {};
  });
  plan = std::make_shared<const LookupPlan>(make_plan(*table, *ids, options, n_results));
  known = std::move(wanted);
  return plan;
}

LookupBackwardPlan plan_lookup_backward(const Spec& table, c10::ArrayRef<Placement> found,
                                        c10::ArrayRef<Placement> grad) {
  LookupBackwardPlan backward{without_partial(found), without_partial(table.placements())};
  for (size_t m = 0; m < backward.grad.size(); ++m) {
    Placement &of_grad = backward.grad[m], &of_table = backward.table[m];
    if (!of_table.is_whole()) continue;
    if (of_grad.is_whole() && grad[m].terms() && grad[m].is_linear()) of_grad = grad[m];
    if (of_grad.divides()) of_table = Placement::partial();
    if (of_grad.terms()) of_table = of_grad;
  }
  return backward;
}

}  // namespace shardwise
