#include "ops/embedding/bag_offsets.h"

#include "ops/embedding/table_lookup.h"
#include "ops/support/planned_values.h"
#include "placements/placement_list.h"
#include "runtime/api/equal_values.h"
#include "runtime/comm/order_check.h"
#include "runtime/comm/tracing.h"
#include "text/check.h"

#include <algorithm>

namespace shardwise {
namespace {

void check_numbers(const char* op, const at::Tensor& offsets, int64_t n_ids) {
  const auto* first = offsets.const_data_ptr<int64_t>();
  const auto* end = first + offsets.numel();
  if (first == end) return;
  SW_CHECK_VALUE(*first == 0, "[{}] offsets begin with {}. Bag 0 begins at 0.", op, *first);
  const auto* fall = std::is_sorted_until(first, end);
  SW_CHECK_VALUE(fall == end, "[{}] offsets fall from {} to {} at {}. Give them in ascending order.", op,
                 fall == end ? 0 : fall[-1], fall == end ? 0 : *fall, fall - first);
  SW_CHECK_VALUE(end[-1] <= n_ids, "[{}] the last offset is {}, but there are {} ids. Use offsets in [0, {}].", op,
                 end[-1], n_ids, n_ids);
}

/// True if `offsets` on the host are 0, k, 2k, ...: `n` bags of k ids each that together hold all `n_ids` ids. An entry after the last bag is checked
/// too.
bool are_even_on_host(const at::Tensor& offsets, int64_t n, int64_t n_ids) {
  if (n == 0) return n_ids == 0;
  const auto* first = offsets.const_data_ptr<int64_t>();
  for (int64_t i = 0; i < offsets.numel(); ++i)
    if (first[i] * n != i * n_ids) return false;
  return true;
}

/// Offsets on meta count as those of bags with equal lengths.
at::Tensor on_host(const at::Tensor& offsets, int64_t n, int64_t n_ids) {
  if (!offsets.is_meta()) return offsets.to(at::kCPU, at::kLong).contiguous();
  return planned_offsets(n, n_ids).narrow(0, 0, offsets.numel());
}

/// The number of bags.
int64_t count_bags(const char* op, const at::Tensor& offsets, bool include_last) {
  SW_CHECK_VALUE(offsets.dim() == 1, "[{}] offsets of shape [{}] have {} dims. Give [bags].", op,
                 fmt::join(offsets.sizes(), ", "), offsets.dim());
  SW_CHECK_TYPE(offsets.scalar_type() == at::kLong || offsets.scalar_type() == at::kInt,
                "[{}] offsets are {}. Use int64 or int32.", op, c10::toString(offsets.scalar_type()));
  SW_CHECK_VALUE(!include_last || offsets.sym_numel().expect_int() > 0,
                 "[{}] include_last_offset=True, but there are no offsets. Give at least one.", op);
  return offsets.sym_numel().expect_int() - (include_last ? 1 : 0);
}

}  // namespace

bool BagOffsets::are_even(const at::Tensor& offsets, bool include_last, int64_t n_ids) {
  const int64_t n = offsets.numel() - (include_last ? 1 : 0);
  return are_even_on_host(on_host(offsets, n, n_ids), n, n_ids);
}

BagOffsets BagOffsets::even(const char* op, const at::Tensor& offsets, bool include_last, int64_t n_ids) {
  const OutsideTracers outside;
  BagOffsets bags;
  bags.n_ = count_bags(op, offsets, include_last);
  bags.n_ids_ = n_ids;
  bags.offsets_ = planned_offsets(bags.n_, n_ids).narrow(0, 0, bags.n_);
  return bags;
}

void BagOffsets::check_equal(const char* op, const at::Tensor& offsets, const MeshPtr& mesh) {
  SW_CHECK_VALUE(is_equal_on_all(offsets, mesh), "[{}] the ranks have different offsets. Give all ranks the same.", op);
}

BagOffsets BagOffsets::read(const char* op, const at::Tensor& offsets, bool include_last, int64_t n_ids,
                            const MeshPtr& mesh) {
  check_not_traced("embedding_bag");
  BagOffsets bags;
  bags.n_ = count_bags(op, offsets, include_last);
  bags.n_ids_ = n_ids;
  at::Tensor all;
  const at::Tensor plain = is_dtensor(offsets) ? at::Tensor() : on_host(offsets, bags.n_, n_ids);
  if (plain.defined() && are_even_on_host(plain, bags.n_, n_ids)) {
    all = plain;
    if (checks_order()) check_equal(op, all, mesh);
  } else {
    const at::Tensor whole = redistribute(distributed_operand(op, "offsets", offsets, mesh), Placements(mesh->ndim()));
    if (!mesh->is_member()) return bags;
    all = on_host(maybe_dtensor(whole)->shards()[0], bags.n_, n_ids);
  }
  check_numbers(op, all, n_ids);
  if (include_last) bags.n_ids_ = all[bags.n_].item<int64_t>();
  SW_CHECK_VALUE(bags.n_ > 0 || bags.n_ids_ == 0,
                 "[{}] there are {} ids, but no bags for them. Give offsets that begin with 0.", op, bags.n_ids_);
  bags.offsets_ = all.numel() == bags.n_ ? all : all.narrow(0, 0, bags.n_);
  return bags;
}

int64_t BagOffsets::bags_before(int64_t place) const {
  if (place >= n_ids_) return n_;
  if (place == 0) return 0;
  const auto* first = offsets_.const_data_ptr<int64_t>();
  return std::lower_bound(first, first + n_, place) - first;
}

bool BagOffsets::fit(const Layout& ids) const {
  if (!is_known() || ids.is_replicated()) return true;
  if (n_ids_ == 0) return false;
  return std::ranges::all_of(ids.shard_intervals(0), [&](const Interval& interval) {
    const int64_t place = interval.begin, bag = bags_before(place);
    return place == 0 || place >= n_ids_ || (bag < n_ && offsets_.const_data_ptr<int64_t>()[bag] == place);
  });
}

Placements BagOffsets::of_bags(const MeshPtr& mesh, Placements placements) const {
  const Placements of_ids = replicated_where(placements, [](const Placement& each) { return each.split_dim() != 0; });
  Placements of_bags(placements.size(), Placement::shard(0));
  if (is_known()) {
    of_bags = Layout({n_ids_}, mesh->grid_ptr(), of_ids).resized(0, [&](int64_t place) { return bags_before(place); });
  }
  for (const int64_t m : mesh_dims_splitting(placements, 0)) placements[m] = of_bags[m];
  return placements;
}

at::Tensor BagOffsets::within(Interval ids, c10::Device device) const {
  if (ids.begin == 0 && ids.end == n_ids_) return offsets_.to(device);
  const int64_t first = ids.begin == 0 ? 0 : bags_before(ids.begin), end = bags_before(ids.end);
  return (offsets_.narrow(0, first, end - first) - ids.begin).to(device);
}

}  // namespace shardwise
