// wrappers/distributed_embedding/held_rows.h: where this rank keeps the rows that a lookup requests from it: in its blocks or, for tables in files,
// in slots of its caches.
#pragma once

#include "wrappers/distributed_embedding/request_exchange.h"
#include "wrappers/distributed_embedding/table_memory.h"

#include <memory>
#include <vector>

namespace shardwise {

/// An error: rows do not fit into the cache of a lane.
struct CacheShortage {
  int64_t lane = -1;  // -1: all rows fit
  int64_t n_rows = 0, n_held = 0, n_slots = 0;

  /// Throws: c10::ValueError that names the table, the numbers and the option, for the cache of `rank`.
  [[noreturn]] void raise(const TableLanes& lanes, int64_t rank) const;
};

using HoldPtr = std::shared_ptr<HotRows::Hold>;

class HeldRows {
 public:
  /// Copies rows of files to slots. No messages.
  HeldRows(const TableLanes& lanes, const TableMemory& memory, const IncomingRows& incoming);

  /// False if the rows of the lane do not fit, and cannot be looked up. Otherwise they are the rows `rows(lane)` of `block(lane)`.
  bool has(size_t lane) const { return rows_[lane].defined(); }
  const at::Tensor& block(size_t lane) const { return blocks_[lane]; }
  const at::Tensor& rows(size_t lane) const { return rows_[lane]; }

  /// Adds messages that report all shortages to all ranks: a few bytes per pair, if a table is stored in files.
  void add_notices(std::vector<Message>& sends, std::vector<Message>& receives);
  /// Call it when the notices have arrived. Throws: on all ranks alike, if rows of some rank do not fit.
  void check() const;

  /// Takes the holds that keep the rows in their slots.
  std::vector<HoldPtr> take_holds() { return std::move(holds_); }

 private:
  const TableLanes* lanes_;
  std::vector<at::Tensor> blocks_, rows_;  // by lane
  std::vector<HoldPtr> holds_;
  CacheShortage shortage_;           // of the first lane with a shortage
  std::vector<at::Tensor> notices_;  // by rank
};

}  // namespace shardwise
