// ops/embedding/hot_rows.h: a cache of rows of a table whose memory is slow: a file (runtime/tensor/mapped_memory.h) under RAM, or host
// memory under a GPU's.
//
//   slow  [1,000,000 rows]   values, and the optimizer's state: tensors of all rows, DTensors' pieces
//   hot       [10,000 slots] the same for the rows that hot_slots.h chose, on the device that computes
//
// A lookup holds its rows: it copies them into slots as one batch, and they stay until its backward has updated them there. Updated rows are written
// back when they are evicted, at write_back(), and before an operator writes to the slow tensors; after such a write the slots read their rows again.
// So a program may write to the table as usual. A program that reads the table without a lookup calls write_back() first.
#pragma once

#include "ops/embedding/hot_slots.h"
#include "ops/embedding/row_optimizer.h"
#include "runtime/tensor/tensor_memory.h"

#include <atomic>
#include <memory>
#include <mutex>
#include <vector>

namespace shardwise {

/// Safe to use from several threads.
class HotRows : public std::enable_shared_from_this<HotRows> {
 public:
  /// `slow`: [rows, width], contiguous, at least one row. `n_slots`: at most as many slots as rows are made.
  HotRows(at::Tensor slow, int64_t n_slots, c10::Device device);

  /// Counts since construction. An access is one distinct row of one hold().
  struct Counts {
    int64_t slots = 0;
    int64_t hits = 0;
    int64_t misses = 0;
    int64_t evictions = 0;
    int64_t bytes_read = 0;  // from the slow tensors
    int64_t bytes_written = 0;
    int64_t value_bytes = 0;  // current size of the slots' values
    int64_t state_bytes = 0;  // and of their optimizer state
  };
  Counts counts() const;
  int64_t n_slots() const { return slots_.n_slots(); }

  /// Rows that stay in their slots until release().
  class Hold {
   public:
    Hold(std::shared_ptr<HotRows> rows, std::vector<int64_t> held, at::Tensor slots)
        : rows_(std::move(rows)), held_(std::move(held)), slots_(std::move(slots)) {}
    ~Hold() { release(); }
    Hold(const Hold&) = delete;
    Hold& operator=(const Hold&) = delete;
    /// The slot of each id, int64 on the cache's device.
    const at::Tensor& slots() const { return slots_; }
    /// Further calls do nothing.
    void release();

   private:
    std::shared_ptr<HotRows> rows_;
    std::vector<int64_t> held_;
    at::Tensor slots_;
  };
  struct Result {
    std::shared_ptr<Hold> hold;  // null if the rows do not fit; nothing has changed then
    int64_t n_rows = 0;          // distinct rows among the ids
    int64_t n_held = 0;          // slots that other lookups hold
  };
  /// Copies the rows with the numbers `ids` (integers) into slots.
  Result hold(const at::Tensor& ids);
  /// If the slow tensors were written to since hold(), reads the rows of all slots again.
  void catch_up();
  /// [slots, width]: the values of the rows that have slots.
  const at::Tensor& values() const { return tiers_[0].hot; }

  /// One step of `optimizer` on the rows that `groups` name. If all of them have slots, it updates the slots; else (their hold was released) it
  /// updates copies and writes these to the slow tensors. `all`: the slow tensors and this step's scalars, as RowOptimizer::updated_rows() returns
  /// them.
  void update(RowOptimizer& optimizer, const UpdatedRows& all, const RowGrads& grads, const IdGroups& groups);

  /// Writes updated rows to the slow tensors, which are up to date afterwards.
  void write_back();
  /// The same, called before an operator writes to the slow tensors: the slots read their rows again at their next use.
  void expect_write();

  /// While an OwnWrite lives, expect_write() does nothing, because the cache's own update is writing to the table or its state.
  class OwnWrite {
   public:
    explicit OwnWrite(std::vector<std::shared_ptr<HotRows>> rows);
    ~OwnWrite();

   private:
    std::vector<std::shared_ptr<HotRows>> rows_;  // by box; null for boxes without rows
  };

 private:
  /// One slow tensor (the table or a state tensor) and its slots.
  struct Tier {
    at::Tensor slow, hot;
    int64_t row_bytes() const;
  };

  Tier new_tier(at::Tensor slow) const;
  void attach(RowOptimizer& optimizer, c10::ArrayRef<at::Tensor> state);
  void read(c10::ArrayRef<int64_t> rows, c10::ArrayRef<int64_t> slots);
  void write(std::vector<std::pair<int64_t, int64_t>> rows_and_slots);
  void write_changed();
  void refresh();
  int64_t row_bytes() const;

  mutable std::mutex mutex_;
  const c10::Device device_;
  HotSlots slots_;
  std::vector<Tier> tiers_;        // values first, then the state of the optimizer that updated last
  std::vector<at::Tensor> state_;  // the state of that optimizer
  std::vector<std::shared_ptr<const TensorMemory::Action>> before_writes_;  // to state_
  std::vector<bool> is_changed_;  // by slot: true if its row is newer than in the slow tensors
  bool is_stale_ = false;         // the slow tensors are newer
  std::atomic<int> n_own_writes_ = 0;
  Counts counts_;
};
using HotRowsPtr = std::shared_ptr<HotRows>;

}  // namespace shardwise
