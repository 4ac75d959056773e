// ops/embedding/hot_slots.h: which rows of a table have slots in a cache, and which row is evicted next. Pure bookkeeping: no values.
//
// The rule is "least frequently used", with decay:
//   - An access is one distinct row of one hold(). Each slot counts the accesses of its row, up to 255. A row that enters has count 1, and the count
//     of an evicted row is forgotten.
//   - A row enters when it is requested. If no slot is free, the row with the lowest count is evicted; among equal counts, the row that was
//     released first. Held rows stay.
//   - After every 10 accesses per slot all counts are halved, so that rows that used to be frequent make room for rows that are frequent now.
//
// Halving is the "reset" of G. Einziger, R. Friedman and B. Manes, "TinyLFU: A Highly Efficient Cache Admission Policy", 2017, whose sample is
// about 10 accesses per entry, too. One list per count makes each access O(1), as in K. Shah, A. Mitra and D. Matani, "An O(1) algorithm for
// implementing the LFU cache eviction scheme", 2010. Halving costs one pass over the slots, a tenth of a slot per access.
// Memory: 13 bytes per slot, 8 for its row, and the hash table's 16 to 64.
#pragma once

#include <c10/util/ArrayRef.h>
#include <c10/util/flat_hash_map.h>

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

namespace shardwise {

class HotSlots {
 public:
  static constexpr int64_t kPeriod = 10;  // accesses per slot between two halvings
  static constexpr uint8_t kMaxCount = 255;

  /// `n_slots`: in [1, 2^31).
  explicit HotSlots(int64_t n_slots);

  /// A row that entered, its slot, and the row evicted from that slot, or -1 if the slot was free.
  struct Entry {
    int64_t row, slot, left;
  };
  struct Held {
    std::vector<int64_t> slots;  // by row
    std::vector<Entry> entered;  // in the order of the rows
  };

  /// Gives each of `rows` (distinct, not negative) a slot, which the row keeps until release(). A row may be held several times. If the rows do not
  /// fit beside the held ones, returns nullopt and changes nothing.
  std::optional<Held> hold(c10::ArrayRef<int64_t> rows);
  /// Ends one hold of each slot.
  void release(c10::ArrayRef<int64_t> slots);
  /// The slots of `rows`; nullopt if one of the rows has no slot. Counts no access.
  std::optional<std::vector<int64_t>> find(c10::ArrayRef<int64_t> rows) const;

  int64_t n_slots() const { return static_cast<int64_t>(rows_.size()); }
  /// Slots that have a row are [0, n_used()).
  int64_t n_used() const { return n_used_; }
  int64_t n_held() const { return n_held_; }
  int64_t row_of(int64_t slot) const { return rows_[static_cast<size_t>(slot)]; }

 private:
  static constexpr int32_t kNone = -1;
  struct List {
    int32_t first = kNone, last = kNone;
  };

  int32_t slot_of(int64_t row) const;  // kNone if the row has no slot
  bool fit(c10::ArrayRef<int64_t> rows) const;
  int32_t free_slot(int64_t& left);
  void append(int32_t slot);
  void remove(int32_t slot);
  void halve();

  std::vector<int64_t> rows_;
  std::vector<int32_t> before_, after_;  // neighbours in the list of the slot's count; held slots are in no list
  std::vector<int32_t> holds_;
  std::vector<uint8_t> counts_;
  std::array<List, kMaxCount + 1> lists_;
  ska::flat_hash_map<int64_t, int32_t> slots_;
  int64_t n_used_ = 0, n_held_ = 0, n_accesses_ = 0;
};

}  // namespace shardwise
