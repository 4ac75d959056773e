#include "kernels/id_groups.h"

#include "kernels/elements.h"

#include <algorithm>
#include <array>
#include <bit>
#include <limits>
#include <utility>

namespace shardwise::kernels {
namespace {

constexpr int kDigitBits = 11;

int bits_of(int64_t n) { return n <= 1 ? 0 : std::bit_width(static_cast<uint64_t>(n - 1)); }

/// A row and its id's place packed into one word. Words ascend by row, then by place.
struct Packing {
  int place_bits;
  uint64_t pack(uint64_t row, int64_t place) const { return row << place_bits | static_cast<uint64_t>(place); }
  int64_t row(uint64_t word) const { return place_bits == 64 ? 0 : static_cast<int64_t>(word >> place_bits); }
  int64_t place(uint64_t word) const {
    return static_cast<int64_t>(place_bits == 0 ? 0 : word << (64 - place_bits) >> (64 - place_bits));
  }
};

/// Sorts by the bits [low, high), with `other` as scratch. Returns the one of the two arrays that has the result.
uint64_t* sort_words(uint64_t* words, uint64_t* other, int64_t n, int low, int high) {
  const int n_digits = (high - low + kDigitBits - 1) / kDigitBits;
  const int digit_bits = n_digits == 0 ? 0 : (high - low + n_digits - 1) / n_digits;
  std::array<int64_t, 1 << kDigitBits> places;
  for (int digit = 0; digit < n_digits; ++digit) {
    const int shift = low + digit * digit_bits;
    const uint64_t mask = (uint64_t{1} << digit_bits) - 1;
    std::fill_n(places.begin(), mask + 1, 0);
    for (int64_t i = 0; i < n; ++i) ++places[words[i] >> shift & mask];
    int64_t begin = 0;
    for (uint64_t value = 0; value <= mask; ++value) begin += std::exchange(places[value], begin);
    for (int64_t i = 0; i < n; ++i) other[places[words[i] >> shift & mask]++] = words[i];
    std::swap(words, other);
  }
  return words;
}

}  // namespace

SHARDWISE_WIDE_KERNEL IdRange range_of(const Ids& ids, int64_t begin, int64_t end) {
  IdRange range{std::numeric_limits<int64_t>::max(), std::numeric_limits<int64_t>::min()};
  with_ids(ids, [&]<class Id>(const Id* id) {
    Id lowest = std::numeric_limits<Id>::max(), highest = std::numeric_limits<Id>::min();
    for (int64_t i = begin; i < end; ++i) {
      lowest = id[i] < lowest ? id[i] : lowest;
      highest = id[i] > highest ? id[i] : highest;
    }
    if (begin < end) range = {lowest, highest};
  });
  return range;
}

SHARDWISE_KERNEL uint64_t digest_of(const Ids& ids, int64_t begin, int64_t end) {
  uint64_t digest = 0;
  with_ids(ids, [&](const auto* id) {
    for (int64_t i = begin; i < end; ++i) digest += mixed(id[i], i);
  });
  return digest;
}

int64_t group_ids(const Ids& ids, int64_t first_row, int64_t n_rows, int64_t skipped, const GroupMemory& memory) {
  const Packing packing{bits_of(ids.n)};
  uint64_t* words = memory.scratch;
  int64_t n_here = 0;
  with_ids(ids, [&](const auto* id) {
    for (int64_t i = 0; i < ids.n; ++i) {
      const auto row = offset_of(id[i], first_row);
      words[n_here] = packing.pack(row, i);
      n_here += row < static_cast<uint64_t>(n_rows) && static_cast<int64_t>(id[i]) != skipped;
    }
  });
  words = sort_words(words, memory.scratch + ids.n, n_here, packing.place_bits, packing.place_bits + bits_of(n_rows));
  int64_t n_groups = 0;
  if (memory.group_of != nullptr) std::fill_n(memory.group_of, ids.n, -1);
  for (int64_t i = 0; i < n_here; ++i) {
    const int64_t row = packing.row(words[i]), place = packing.place(words[i]);
    if (n_groups == 0 || memory.rows[n_groups - 1] != row) {
      memory.rows[n_groups] = row;
      memory.starts[n_groups++] = i;
    }
    memory.order[i] = place;
    if (memory.group_of != nullptr) memory.group_of[place] = n_groups - 1;
  }
  memory.starts[n_groups] = n_here;
  return n_groups;
}

}  // namespace shardwise::kernels
