#include "ops/embedding/unfetched_rows.h"

#include "runtime/api/gradients.h"
#include "runtime/comm/comm_trace.h"
#include "runtime/tensor/below_autograd.h"
#include "runtime/tensor/write_count.h"

#include <fmt/format.h>

namespace shardwise {

UnfetchedRows::UnfetchedRows(TableLookup lookup, const at::Tensor& table, FindRows find_rows, ShardedLookup sharded)
    : lookup_(std::move(lookup)),
      table_(detached(table)),
      find_rows_(std::move(find_rows)),
      sharded_(std::move(sharded)),
      write_count_(write_count(*maybe_dtensor(table_))) {}

void UnfetchedRows::watch_table(const at::Tensor& rows) {
  watch_ = maybe_dtensor(table_)->memory()->before_writes([rows = c10::weak_intrusive_ptr<c10::TensorImpl>(rows.getIntrusivePtr())] {
    if (const auto alive = rows.lock()) static_cast<DTensorImpl*>(alive.get())->shards();
  });
}

void UnfetchedRows::check_table() const {
  if (!maybe_dtensor(table_)->version_counter().enabled())
    return;  // made in inference mode: its writes are not counted
  TORCH_CHECK_VALUE(
      write_count(*maybe_dtensor(table_)) == write_count_,
      fmt::format("[{}] the table was written to, by way of its local tensor, after its rows were looked up "
                  "and before they were used. Use them before, or keep a copy with clone().",
                  lookup_.op));
}

Shards UnfetchedRows::finish() {
  const BelowAutograd guard;
  const CommScope scope(lookup_.op);
  check_table();
  return {find_rows_(lookup_.with_exchange(), table_)};
}

std::optional<Placements> UnfetchedRows::ids_for(const Spec& to) const {
  if (to.mesh() != lookup_.table->mesh() || to.dtype() != lookup_.table->dtype()) return std::nullopt;
  Placements of_ids = lookup_.plan->ids;
  for (size_t m = 0; m < of_ids.size(); ++m) {
    const Placement& wanted = to.placements()[m];
    if (wanted == lookup_.plan->rows->placements()[m]) continue;
    if (!lookup_.plan->exchange_along[m] || !wanted.is_shard() || wanted.dim() >= lookup_.ids.dim())
      return std::nullopt;
    of_ids[m] = wanted;
  }
  return of_ids != lookup_.plan->ids ? std::optional(std::move(of_ids)) : std::nullopt;
}

std::optional<Shards> UnfetchedRows::fetch_as(const SpecPtr& to) {
  const auto of_ids = ids_for(*to);
  if (!of_ids) return std::nullopt;
  const BelowAutograd guard;
  const CommScope scope(lookup_.op, CommScope::Cause::kProgram);
  const LookupOptions options{.exchange = LookupExchange::kAllToAll, .checks_ids = false};  // these were checked
  const at::Tensor ids = redistribute(lookup_.ids, *of_ids);
  auto plan = plan_lookup(lookup_.table, spec_of(ids), options);
  if (plan->rows != to || plan->ids_are_equal) return std::nullopt;
  check_table();
  TableLookup sharded = TableLookup::start(lookup_.op, lookup_.table, ids, std::move(plan), options);
  Shards rows{find_rows_(sharded, table_)};
  *sharded_ = std::move(sharded);
  return rows;
}

}  // namespace shardwise
