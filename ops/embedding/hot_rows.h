// ops/embedding/hot_rows.h: a cache of rows of a table whose memory is slow: a file (runtime/tensor/mapped_memory.h) under RAM, or host
// memory under a GPU's.
//
//   slow  [1,000,000 rows]   values, and the optimizer's state: tensors of all rows, DTensors' pieces
//   hot       [10,000 slots] the same of the rows that hot_slots.h chose, on the device that computes
//
// A lookup holds its rows: they are copied into slots at once, as one batch, and stay until its backward has updated them there. What was
// updated is written back when its row leaves, at write_back(), and before an operator writes to the slow tensors, whose values the slots
// then read again. So a program that writes to the table needs no care; one that reads it elsewhere than through lookups calls write_back().
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
  /// `slow`: [rows, width], contiguous, at least one row. `n_slots`: of which no more than rows are made.
  HotRows(at::Tensor slow, int64_t n_slots, c10::Device device);

  /// Since the start. An access is one distinct row of one hold().
  struct Counts {
    int64_t slots = 0;
    int64_t hits = 0;
    int64_t misses = 0;
    int64_t evictions = 0;
    int64_t bytes_read = 0;  // from the slow tensors
    int64_t bytes_written = 0;
    int64_t value_bytes = 0;  // of the slots now: values,
    int64_t state_bytes = 0;  // and the optimizer's state
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
    /// The second call does nothing.
    void release();

   private:
    std::shared_ptr<HotRows> rows_;
    std::vector<int64_t> held_;
    at::Tensor slots_;
  };
  struct Result {
    std::shared_ptr<Hold> hold;  // null where they do not fit; nothing has changed then
    int64_t n_rows = 0;          // distinct ones among the ids
    int64_t n_held = 0;          // by others
  };
  /// Brings the rows of `ids` (integers, each a row) to slots.
  Result hold(const at::Tensor& ids);
  /// Slots whose rows were written to in the slow tensors since hold() read them have the values of now.
  void catch_up();
  /// [slots, width]: the values of the rows that have slots.
  const at::Tensor& values() const { return tiers_[0].hot; }

  /// One step of `optimizer` on the rows that `groups` name: in the slots if all rows have one, else (their hold was released) in a copy of
  /// them that is written to the slow tensors. `all`: the slow tensors and the numbers of this step, as RowOptimizer::updated_rows() gives
  /// them.
  void update(RowOptimizer& optimizer, const UpdatedRows& all, const RowGrads& grads, const IdGroups& groups);

  /// Afterwards the slow tensors have the values of now.
  void write_back();
  /// The same before somebody writes to them: slots read their rows again at the next use.
  void expect_write();

  /// While it lives, expect_write() does nothing: it is the cache's own update that writes to the table or its state.
  class OwnWrite {
   public:
    explicit OwnWrite(std::vector<std::shared_ptr<HotRows>> rows);
    ~OwnWrite();

   private:
    std::vector<std::shared_ptr<HotRows>> rows_;  // by box; null for boxes without rows
  };

 private:
  /// One kind of values: the table's, or a state tensor's.
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
  std::vector<at::Tensor> state_;  // that optimizer's
  std::vector<std::shared_ptr<const TensorMemory::Action>> before_writes_;  // to state_
  std::vector<bool> is_changed_;                                            // by slot: its row is newer here
  bool is_stale_ = false;                                                   // the slow tensors are newer
  std::atomic<int> n_own_writes_ = 0;
  Counts counts_;
};
using HotRowsPtr = std::shared_ptr<HotRows>;

}  // namespace shardwise
