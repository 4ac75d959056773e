#include "kernels/packed_rows.h"

#include "kernels/elements.h"

#include <algorithm>
#include <limits>

namespace shardwise::kernels {
namespace {

constexpr int64_t kPackedColumns = 64;  // columns pooled at a time

struct PackedRow {
  const uint8_t* bytes;
  float scale;
  float offset;
};

/// A piece as bytes.
class PackedTable {
 public:
  explicit PackedTable(const PackedRows& table)
      : rows_(static_cast<const uint8_t*>(table.data)),
        first_row_(table.first_row),
        n_rows_(static_cast<uint64_t>(table.n_rows)),
        step_(packed_words(table.width) * 4) {}

  bool has(int64_t id) const { return offset_of(id, first_row_) < n_rows_; }
  /// Pre: has().
  PackedRow row(int64_t id) const {
    const uint8_t* bytes = at(id);
    float numbers[2];
    std::memcpy(numbers, bytes + step_ - 8, sizeof numbers);
    return {bytes, numbers[0], numbers[1]};
  }
  void prefetch_row(int64_t id) const {
    if (has(id)) prefetch(at(id), step_);
  }

 private:
  const uint8_t* at(int64_t id) const { return rows_ + static_cast<int64_t>(offset_of(id, first_row_)) * step_; }

  const uint8_t* rows_;
  int64_t first_row_;
  uint64_t n_rows_;
  int64_t step_;
};

template <class S>
S unpacked(const PackedRow& row, int64_t c) {
  return static_cast<S>(row.scale) * static_cast<S>(row.bytes[c]) + static_cast<S>(row.offset);
}

struct Bag {
  int64_t begin, end, n_counting;
  template <class Id>
  Bag(const Bags& bags, const Id* ids, int64_t b)
      : begin(bags.offsets[b]), end(b + 1 < bags.n ? bags.offsets[b + 1] : bags.n_ids), n_counting(end - begin) {
    if (bags.padding >= 0)
      n_counting -= std::count_if(ids + begin, ids + end, [&](Id id) { return int64_t{id} == bags.padding; });
  }
};

/// Calls `take(k, row)` for each id k of a bag whose row is in this piece.
template <class Id, class Take>
void for_each_packed(const PackedTable& table, const Bags& bags, const Bag& bag, const Id* ids, const Take& take) {
  for (int64_t k = bag.begin; k < bag.end; ++k) {
    if (k + kAhead < bags.n_ids) table.prefetch_row(ids[k + kAhead]);
    if (int64_t{ids[k]} != bags.padding && table.has(ids[k])) take(k, table.row(ids[k]));
  }
}

/// Sums weight * (scale * byte + offset). The offsets are summed once for all columns.
template <class T, class Id, class N>
void sum_columns(const PackedTable& table, const Bags& bags, const Bag& bag, const Id* ids, Sum<T> divisor,
                 int64_t first, N n, T* result) {
  using S = Sum<T>;
  const auto* weights = static_cast<const T*>(bags.weights);
  S sums[kPackedColumns] = {}, offset = 0;
  for_each_packed(table, bags, bag, ids, [&](int64_t k, const PackedRow& row) {
    const S weight = weights == nullptr ? S{1} : load(weights[k]), scale = weight * static_cast<S>(row.scale);
    offset += weight * static_cast<S>(row.offset);
    for (int64_t c = 0; c < n; ++c) sums[c] += scale * static_cast<S>(row.bytes[first + c]);
  });
  for (int64_t c = 0; c < n; ++c) result[first + c] = static_cast<T>((sums[c] + offset) / divisor);
}

template <class T, class Id>
void max_columns(const PackedTable& table, const Bags& bags, const Bag& bag, const Id* ids, int64_t width, T* result,
                 int64_t* chosen) {
  bool is_first = true;
  for_each_packed(table, bags, bag, ids, [&](int64_t k, const PackedRow& row) {
    for (int64_t c = 0; c < width; ++c) {
      const auto value = static_cast<T>(unpacked<Sum<T>>(row, c));
      if (!is_first && !(load(value) > load(result[c]))) continue;
      result[c] = value;
      if (chosen != nullptr) chosen[c] = k;
    }
    is_first = false;
  });
  if (!is_first) return;
  const Sum<T> value = bag.n_counting > 0 ? -std::numeric_limits<Sum<T>>::infinity() : 0;
  std::fill_n(result, width, static_cast<T>(value));
  if (chosen != nullptr) std::fill_n(chosen, width, -1);
}

}  // namespace

SHARDWISE_KERNEL void look_up_packed(const PackedRows& table, const Ids& ids, Element element, void* results,
                                     int64_t result_step, int64_t begin, int64_t end) {
  with_element(element, [&]<class T>(T) {
    with_ids(ids, [&](const auto* id) {
      const PackedTable rows(table);
      for (int64_t i = begin; i < end; ++i) {
        if (i + kAhead < ids.n) rows.prefetch_row(id[i + kAhead]);
        T* into = static_cast<T*>(results) + i * result_step;
        if (!rows.has(id[i])) continue;
        const PackedRow row = rows.row(id[i]);
        for (int64_t c = 0; c < table.width; ++c) into[c] = static_cast<T>(unpacked<Sum<T>>(row, c));
      }
    });
  });
}

SHARDWISE_KERNEL void pool_packed(const PackedRows& table, const Ids& ids, const Bags& bags, Pooling pooling,
                                  Element element, void* results, int64_t* chosen, int64_t begin, int64_t end) {
  with_element(element, [&]<class T>(T) {
    with_ids(ids, [&](const auto* id) {
      const PackedTable rows(table);
      for (int64_t b = begin; b < end; ++b) {
        const Bag bag(bags, id, b);
        T* result = static_cast<T*>(results) + b * table.width;
        if (pooling == Pooling::kMax) {
          max_columns(rows, bags, bag, id, table.width, result, chosen == nullptr ? nullptr : chosen + b * table.width);
          continue;
        }
        const auto divisor =
            static_cast<Sum<T>>(pooling == Pooling::kMean ? std::max<int64_t>(bag.n_counting, 1) : int64_t{1});
        int64_t first = 0;
        for (; first + kPackedColumns <= table.width; first += kPackedColumns)
          sum_columns(rows, bags, bag, id, divisor, first, std::integral_constant<int64_t, kPackedColumns>{}, result);
        if (first < table.width) sum_columns(rows, bags, bag, id, divisor, first, table.width - first, result);
      }
    });
  });
}

}  // namespace shardwise::kernels
