// wrappers/distributed_embedding/held_rows.h: where the rows that a lookup asks this rank for are while it lasts: in its blocks, or, of
// tables in files, in the slots of its caches.
#pragma once

#include "wrappers/distributed_embedding/request_exchange.h"
#include "wrappers/distributed_embedding/table_memory.h"

#include <memory>
#include <vector>

namespace shardwise {

/// That rows do not fit into the cache of a lane.
struct CacheShortage {
  int64_t lane = -1;  // none: they fit
  int64_t n_rows = 0, n_held = 0, n_slots = 0;

  /// Throws: c10::ValueError that names the table, the numbers and the option, for the cache of `rank`.
  [[noreturn]] void raise(const TableLanes& lanes, int64_t rank) const;
};

using HoldPtr = std::shared_ptr<HotRows::Hold>;

class HeldRows {
 public:
  /// Brings rows of files to slots. No messages.
  HeldRows(const TableLanes& lanes, const TableMemory& memory, const IncomingRows& incoming);

  /// False where they do not fit; then there is nothing to look up. Those of a lane are `rows(lane)` of `block(lane)`.
  bool has(size_t lane) const { return rows_[lane].defined(); }
  const at::Tensor& block(size_t lane) const { return blocks_[lane]; }
  const at::Tensor& rows(size_t lane) const { return rows_[lane]; }

  /// Messages by which all ranks hear of all shortages: a few bytes per pair, where a table lies in files.
  void add_notices(std::vector<Message>& sends, std::vector<Message>& receives);
  /// To be called when these have arrived. Throws: on all ranks alike, where rows of a rank do not fit.
  void check() const;

  /// What keeps the rows in their slots.
  std::vector<HoldPtr> take_holds() { return std::move(holds_); }

 private:
  const TableLanes* lanes_;
  std::vector<at::Tensor> blocks_, rows_;  // by lane
  std::vector<HoldPtr> holds_;
  CacheShortage shortage_;           // the first lane's
  std::vector<at::Tensor> notices_;  // by rank
};

}  // namespace shardwise
