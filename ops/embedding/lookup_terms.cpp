#include "ops/embedding/lookup_terms.h"

#include "runtime/comm/comm_policy.h"
#include "runtime/redistribute/execute.h"
#include "runtime/tensor/below_autograd.h"

#include <ATen/ops/zeros.h>
#include <fmt/format.h>

namespace shardwise {
namespace {

/// Copies the ids, because a program may reuse their memory.
TableLookup with_own_ids(TableLookup lookup) {
  lookup.ids = lookup.ids.clone();
  return lookup;
}

std::vector<at::Tensor> own_rows_of(c10::ArrayRef<IdGroups> groups, c10::ArrayRef<at::Tensor> pieces) {
  std::vector<at::Tensor> rows;
  for (size_t box = 0; box < groups.size(); ++box) rows.push_back(lookup_rows(pieces[box], groups[box].rows, 0));
  return rows;
}

}  // namespace

LookupTerms::LookupTerms(const TableLookup& lookup, c10::ArrayRef<at::Tensor> pieces, ShardedLookup sharded)
    : OwnedRows(lookup.plan->rows),
      lookup_(with_own_ids(lookup)),
      own_(lookup_.own_groups()),
      own_rows_(own_rows_of(own_, pieces)),
      sharded_(std::move(sharded)) {}

Shards LookupTerms::finish() {
  const BelowAutograd guard;
  const Box& found = lookup_.plan->rows->boxes()[0];
  const int64_t width = found.sizes.back();
  if (own_.size() == 1 && own_rows_[0].size(1) == width)
    return {lookup_rows(own_rows_[0], own_[0].group_of, 0).view(found.sizes)};
  const at::Tensor ids = lookup_.own_ids();
  const at::Tensor terms = at::zeros({ids.numel(), width}, ids.options().dtype(lookup_.table->dtype()));
  for (size_t i = 0; i < own_.size(); ++i) {
    const Interval columns = lookup_.table->boxes()[i].interval(1);
    const at::Tensor place = terms.narrow(1, columns.begin - found.offsets.back(), columns.length());
    lookup_rows_into(place, own_rows_[i], own_[i].group_of, 0);
  }
  return {terms.view(found.sizes)};
}

Placements LookupTerms::ids_for(const Spec& to) const {
  const LookupPlan& plan = *lookup_.plan;
  Placements of_ids = plan.ids;
  for (size_t m = 0; m < of_ids.size(); ++m) {
    const Placement& wanted = to.placements()[m];
    if (wanted == (plan.exchange_along[m] ? plan.ids[m] : plan.found[m])) continue;
    const bool splits_ids = wanted.split_dim() >= 0 && wanted.split_dim() < lookup_.ids.dim();
    if (!plan.exchange_along[m] || !splits_ids) return plan.ids;
    of_ids[m] = wanted;
  }
  return of_ids;
}

std::optional<Shards> LookupTerms::move_as(const SpecPtr& to) const {
  const SpecPtr& from = lookup_.plan->rows;
  if (to->mesh() != from->mesh() || to->dtype() != from->dtype()) return std::nullopt;
  for (size_t m = 0; m < to->placements().size(); ++m)
    if (lookup_.plan->exchange_along[m] && to->placements()[m].terms()) return std::nullopt;
  check_comm_policy([&] { return fmt::format("moves {} to {}", to_string(*from), to_string(to->layout())); });
  const Placements of_ids = ids_for(*to);
  const TableLookup parts = lookup_.of_parts(of_ids, own_);
  const Box& box = parts.plan->rows->boxes()[0];
  Shards rows{
      lookup_rows(parts.row_exchange->fetch_kept(own_rows_), parts.row_exchange->groups().group_of, 0).view(box.sizes)};
  if (parts.scatters_gradients()) sharded_->store(std::make_shared<const TableLookup>(parts));
  return move(parts.plan->rows, rows, to);
}

}  // namespace shardwise
