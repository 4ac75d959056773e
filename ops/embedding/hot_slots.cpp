#include "ops/embedding/hot_slots.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <limits>

namespace shardwise {

HotSlots::HotSlots(int64_t n_slots) {
  TORCH_INTERNAL_ASSERT(n_slots > 0 && n_slots <= std::numeric_limits<int32_t>::max(), n_slots, " slots");
  const auto n = static_cast<size_t>(n_slots);
  rows_.assign(n, -1);
  before_.assign(n, kNone);
  after_.assign(n, kNone);
  holds_.assign(n, 0);
  counts_.assign(n, 0);
}

int32_t HotSlots::slot_of(int64_t row) const {
  const auto found = slots_.find(row);
  return found == slots_.end() ? kNone : found->second;
}

bool HotSlots::fit(c10::ArrayRef<int64_t> rows) const {
  int64_t n_more = 0;
  for (const int64_t row : rows) {
    const int32_t slot = slot_of(row);
    n_more += slot == kNone || holds_[static_cast<size_t>(slot)] == 0;
  }
  return n_held_ + n_more <= n_slots();
}

std::optional<HotSlots::Held> HotSlots::hold(c10::ArrayRef<int64_t> rows) {
  if (!fit(rows)) return std::nullopt;
  Held held;
  held.slots.reserve(rows.size());
  // Rows that are present come first, so that no new row evicts one of them.
  for (const int64_t row : rows) {
    const int32_t slot = slot_of(row);
    held.slots.push_back(slot);
    if (slot == kNone) continue;
    const auto at = static_cast<size_t>(slot);
    if (holds_[at]++ == 0) {
      remove(slot);
      ++n_held_;
    }
    counts_[at] += counts_[at] < kMaxCount;
  }
  for (size_t i = 0; i < rows.size(); ++i) {
    if (held.slots[i] != kNone) continue;
    int64_t left = -1;
    const int32_t slot = free_slot(left);
    const auto at = static_cast<size_t>(slot);
    rows_[at] = rows[i];
    holds_[at] = 1;
    counts_[at] = 1;
    ++n_held_;
    slots_[rows[i]] = slot;
    held.slots[i] = slot;
    held.entered.push_back({rows[i], slot, left});
  }
  n_accesses_ += static_cast<int64_t>(rows.size());
  if (n_accesses_ >= kPeriod * n_slots()) halve();
  return held;
}

void HotSlots::release(c10::ArrayRef<int64_t> slots) {
  for (const int64_t slot : slots)
    if (--holds_[static_cast<size_t>(slot)] == 0) {
      append(static_cast<int32_t>(slot));
      --n_held_;
    }
}

std::optional<std::vector<int64_t>> HotSlots::find(c10::ArrayRef<int64_t> rows) const {
  std::vector<int64_t> slots;
  slots.reserve(rows.size());
  for (const int64_t row : rows) {
    slots.push_back(slot_of(row));
    if (slots.back() == kNone) return std::nullopt;
  }
  return slots;
}

/// Returns a free slot. If it has to evict a row for that, `left` becomes the evicted row.
int32_t HotSlots::free_slot(int64_t& left) {
  if (n_used_ < n_slots()) return static_cast<int32_t>(n_used_++);
  const auto list = std::ranges::find_if(lists_, [](const List& each) { return each.first != kNone; });
  const int32_t slot = list->first;
  remove(slot);
  left = row_of(slot);
  slots_.erase(left);
  return slot;
}

void HotSlots::append(int32_t slot) {
  const auto at = static_cast<size_t>(slot);
  List& list = lists_[counts_[at]];
  before_[at] = list.last;
  after_[at] = kNone;
  (list.last == kNone ? list.first : after_[static_cast<size_t>(list.last)]) = slot;
  list.last = slot;
}

void HotSlots::remove(int32_t slot) {
  const auto at = static_cast<size_t>(slot);
  List& list = lists_[counts_[at]];
  const int32_t before = before_[at], after = after_[at];
  (before == kNone ? list.first : after_[static_cast<size_t>(before)]) = after;
  (after == kNone ? list.last : before_[static_cast<size_t>(after)]) = before;
}

void HotSlots::halve() {
  n_accesses_ = 0;
  for (int64_t slot = 0; slot < n_used_; ++slot) counts_[static_cast<size_t>(slot)] >>= 1;
  // The lists of counts 2c and 2c + 1 become the list of count c, in this order.
  for (size_t count = 0; count < lists_.size(); ++count) {
    List joined;
    if (2 * count < lists_.size()) {
      const List less = lists_[2 * count], more = lists_[2 * count + 1];
      joined = {less.first == kNone ? more.first : less.first, more.last == kNone ? less.last : more.last};
      if (less.last != kNone && more.first != kNone) {
        after_[static_cast<size_t>(less.last)] = more.first;
        before_[static_cast<size_t>(more.first)] = less.last;
      }
    }
    lists_[count] = joined;
  }
}

}  // namespace shardwise
