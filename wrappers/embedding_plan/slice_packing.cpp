#include "wrappers/embedding_plan/slice_packing.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>
#include <queue>
#include <set>

namespace shardwise::detail {
namespace {

constexpr size_t kEarlyRanks = 8;  // number of early ranks that a move considers

/// Items on ranks, and the moves and swaps that make the last rank finish earlier.
class Packing {
 public:
  Packing(const std::vector<PackedItem>& items, Ranks ranks)
      : items_(items), ranks_(std::move(ranks)), on_(items.size(), -1), members_(ranks_.seconds.size()) {}

  bool fill(const std::vector<size_t>& order) {
    using Entry = std::pair<double, int64_t>;
    std::priority_queue<Entry, std::vector<Entry>, std::greater<>> first;
    for (size_t rank = 0; rank < ranks_.seconds.size(); ++rank)
      first.emplace(ranks_.seconds[rank], static_cast<int64_t>(rank));
    std::vector<Entry> full;  // for this item
    for (const size_t item : order) {
      while (!first.empty() && !has_room(first.top().second, items_[item].n_bytes)) {
        full.push_back(first.top());
        first.pop();
      }
      if (first.empty()) return false;
      const int64_t rank = first.top().second;
      first.pop();
      put(item, rank);
      first.emplace(ranks_.seconds[rank], rank);
      for (const Entry& entry : full) first.push(entry);
      full.clear();
    }
    return true;
  }

  void improve(int64_t n_moves) {
    for (size_t rank = 0; rank < ranks_.seconds.size(); ++rank)
      by_time_.emplace(ranks_.seconds[rank], static_cast<int64_t>(rank));
    while (n_moves-- > 0 && improve_last()) {
    }
  }

  Packed result() && {
    const auto last = std::ranges::max_element(ranks_.seconds);
    return {std::move(on_), last - ranks_.seconds.begin(), *last};
  }

 private:
  static constexpr size_t kNone = static_cast<size_t>(-1);

  /// `item` leaves the last rank for `rank`; `other`, if any, comes back.
  struct Move {
    double later = 0;  // seconds of the later of the two ranks, after the move
    size_t item = kNone, other = kNone;
    int64_t rank = -1;
  };

  bool has_room(int64_t rank, double n_bytes) const { return ranks_.n_bytes[rank] + n_bytes <= ranks_.memory; }

  void put(size_t item, int64_t rank) {
    on_[item] = rank;
    members_[rank].push_back(item);
    ranks_.seconds[rank] += items_[item].seconds;
    ranks_.n_bytes[rank] += items_[item].n_bytes;
  }

  void take(size_t item) {
    const int64_t rank = on_[item];
    std::erase(members_[rank], item);
    ranks_.seconds[rank] -= items_[item].seconds;
    ranks_.n_bytes[rank] -= items_[item].n_bytes;
  }

  bool improve_last() {
    const auto [latest, last] = *by_time_.rbegin();
    Move best{latest * (1 - 1e-7)};
    size_t n_seen = 0;
    for (const auto& [seconds, rank] : by_time_) {
      if (rank == last || n_seen++ == kEarlyRanks) break;
      look_for_move(last, rank, best);
    }
    if (best.item == kNone) return false;
    for (const int64_t rank : {last, best.rank}) by_time_.erase({ranks_.seconds[rank], rank});
    take(best.item);
    if (best.other != kNone) {
      take(best.other);
      put(best.other, last);
    }
    put(best.item, best.rank);
    for (const int64_t rank : {last, best.rank}) by_time_.emplace(ranks_.seconds[rank], rank);
    return true;
  }

  void look_for_move(int64_t last, int64_t rank, Move& best) const {
    const double gap = ranks_.seconds[last] - ranks_.seconds[rank];
    const auto consider = [&](size_t item, size_t other) {
      const double more = items_[item].seconds - (other == kNone ? 0 : items_[other].seconds);
      const double bytes = items_[item].n_bytes - (other == kNone ? 0 : items_[other].n_bytes);
      if (more <= 0 || more >= gap || !has_room(rank, bytes) || !has_room(last, -bytes)) return;
      const double later = std::max(ranks_.seconds[last] - more, ranks_.seconds[rank] + more);
      if (later < best.later) best = {later, item, other, rank};
    };
    std::vector<size_t> others = members_[rank];
    std::ranges::sort(
        others, [&](size_t a, size_t b) { return std::pair(items_[a].seconds, a) < std::pair(items_[b].seconds, b); });
    for (const size_t item : members_[last]) {
      consider(item, kNone);
      // The best partner takes gap / 2 seconds less than the item.
      const double wanted = items_[item].seconds - gap / 2;
      const auto seconds = [&](size_t other) { return items_[other].seconds; };
      const auto above = static_cast<size_t>(std::ranges::lower_bound(others, wanted, {}, seconds) - others.begin());
      for (size_t at = above - std::min<size_t>(above, 2); at < std::min(above + 2, others.size()); ++at)
        consider(item, others[at]);
    }
  }

  const std::vector<PackedItem>& items_;
  Ranks ranks_;
  std::vector<int64_t> on_;                   // per item
  std::vector<std::vector<size_t>> members_;  // per rank
  std::set<std::pair<double, int64_t>> by_time_;
};

}  // namespace

std::optional<Packed> pack(const std::vector<PackedItem>& items, Ranks ranks, double target, int64_t n_moves) {
  const double room = ranks.memory - *std::ranges::max_element(ranks.n_bytes);
  std::vector<double> shares;
  for (const PackedItem& item : items)
    shares.push_back(std::max(item.seconds / target, std::isinf(room) ? 0 : item.n_bytes / std::max(room, 1.0)));
  std::vector<size_t> order(items.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::stable_sort(order, [&](size_t a, size_t b) { return shares[a] > shares[b]; });
  Packing packing(items, std::move(ranks));
  if (!packing.fill(order)) return {};
  packing.improve(n_moves);
  return std::move(packing).result();
}

}  // namespace shardwise::detail
