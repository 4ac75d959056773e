#include "ops/embedding/lookup_terms.h"

#include "runtime/comm/comm_policy.h"
#include "runtime/redistribute/execute.h"
#include "runtime/tensor/below_autograd.h"

#include <fmt/format.h>

namespace shardwise {
namespace {

/// The ids are copied: a program may reuse their memory.
TableLookup with_own_ids(const TableLookup& lookup) {
  TableLookup result = lookup.with_exchange();
  result.ids = lookup.ids.clone();
  return result;
}

}  // namespace

LookupTerms::LookupTerms(const TableLookup& lookup, c10::ArrayRef<at::Tensor> pieces, ShardedLookup sharded)
    : OwnedRows(lookup.plan->rows),
      lookup_(with_own_ids(lookup)),
      own_rows_(lookup_.row_exchange->own_rows(pieces)),
      sharded_(std::move(sharded)) {}

Shards LookupTerms::finish() {
  const BelowAutograd guard;
  return {lookup_.row_exchange->terms(own_rows_).view(lookup_.plan->rows->boxes()[0].sizes)};
}

Placements LookupTerms::ids_for(const Spec& to) const {
  Placements of_ids = lookup_.plan->ids;
  for (size_t m = 0; m < of_ids.size(); ++m) {
    const Placement& wanted = to.placements()[m];
    if (!lookup_.plan->exchange_along[m] && wanted != lookup_.plan->found[m]) return lookup_.plan->ids;
    if (!lookup_.plan->exchange_along[m] || wanted.is_replicate()) continue;
    if (!wanted.is_shard() || wanted.dim() >= lookup_.ids.dim()) return lookup_.plan->ids;
    of_ids[m] = wanted;
  }
  return of_ids;
}

std::optional<Shards> LookupTerms::move_as(const SpecPtr& to) const {
  const SpecPtr& from = lookup_.plan->rows;
  if (to->mesh() != from->mesh() || to->dtype() != from->dtype()) return std::nullopt;
  for (size_t m = 0; m < to->placements().size(); ++m)
    if (lookup_.plan->exchange_along[m] && to->placements()[m].is_partial()) return std::nullopt;
  check_comm_policy([&] { return fmt::format("moves {} to {}", to_string(*from), to_string(to->layout())); });
  const Placements of_ids = ids_for(*to);
  const TableLookup parts = lookup_.of_parts(of_ids);
  const Box& box = parts.plan->rows->boxes()[0];
  Shards rows{
      lookup_rows(parts.row_exchange->fetch_kept(own_rows_), parts.row_exchange->groups().group_of, 0).view(box.sizes)};
  if (parts.scatters_gradients()) sharded_->store(std::make_shared<const TableLookup>(parts));
  return move(parts.plan->rows, rows, to);
}

}  // namespace shardwise
