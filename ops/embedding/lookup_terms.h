// ops/embedding/lookup_terms.h: the result of looking up equal ids in a table that is sharded by rows: each rank has its own rows.
//
//   ids 7 2 7 9 on both ranks, rows [0, 5) on rank 0 and [5, 10) on rank 1:
//     rank 0 has  0 r2 0  0     and keeps r2          a move to Replicate sends r2 to rank 1, and r7 and r9 to rank 0;
//     rank 1 has r7  0 r7 r9    and keeps r7, r9      one to Shard(0) sends r7 to rank 0, and nothing to rank 1
#pragma once

#include "ops/embedding/table_lookup.h"
#include "runtime/tensor/owned_rows.h"

#include <atomic>
#include <memory>
#include <optional>

namespace shardwise {

/// The lookup that the backward needs, with ids sharded as the gradient, if a move of the result already made it. Making it anew sends nothing
/// either.
using ShardedLookup = std::shared_ptr<std::atomic<std::shared_ptr<const TableLookup>>>;

/// Keeps a copy of this rank's rows, each once, so that the table may be written to. The terms are made when the result is read.
class LookupTerms final : public OwnedRows, public PendingMove {
 public:
  /// `lookup`: of equal ids, without its exchange; on a member. `pieces`: this rank's pieces of the table. Sends nothing. Cost: a pass over the ids,
  /// groups and copies own rows.
  LookupTerms(const TableLookup& lookup, c10::ArrayRef<at::Tensor> pieces, ShardedLookup sharded);

  /// This rank's terms: its rows, and zeros for rows of other ranks.
  Shards finish() override;
  std::optional<Shards> move_as(const SpecPtr& to) const override;

 private:
  /// The placements of ids for which rows are placed as `to`, or nearer to it.
  Placements ids_for(const Spec& to) const;

  TableLookup lookup_;
  const std::vector<IdGroups> own_;         // per box of this rank
  const std::vector<at::Tensor> own_rows_;  // of these groups, [groups, columns of the box]
  const ShardedLookup sharded_;
};

}  // namespace shardwise
