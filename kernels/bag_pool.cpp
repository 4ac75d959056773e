#include "kernels/bag_pool.h"

#include "kernels/column_blocks.h"
#include "kernels/elements.h"

#include <algorithm>
#include <limits>

namespace shardwise::kernels {
namespace {

int64_t end_of(const Bags& bags, int64_t bag) { return bag + 1 < bags.n ? bags.offsets[bag + 1] : bags.n_ids; }

/// The number of a bag's ids that are not padding.
template <class Id>
int64_t count(const Bags& bags, const Id* ids, int64_t bag) {
  const int64_t begin = bags.offsets[bag], end = end_of(bags, bag);
  if (bags.padding < 0) return end - begin;
  return end - begin - std::count_if(ids + begin, ids + end, [&](Id id) { return int64_t{id} == bags.padding; });
}

constexpr int64_t kBagsAtOnce = 16;  // bags summed over one column block before the next block

/// True if the rows of all ids of the bags [begin, end) are in this piece, and none is padding.
template <class Id>
bool has_all_rows(const Rows& table, const Bags& bags, const Id* ids, int64_t begin, int64_t end) {
  const Id *first = ids + bags.offsets[begin], *last = ids + end_of(bags, end - 1);
  const int64_t first_row = table.first_row;
  uint64_t highest = 0;  // an id below the first row is huge
  for (const Id* id = first; id < last; ++id) highest = std::max(highest, offset_of(*id, first_row));
  if (highest >= static_cast<uint64_t>(table.n_rows)) return false;
  return bags.padding < 0 || std::find(first, last, static_cast<Id>(bags.padding)) == last;
}

/// Calls `take(columns, k, ahead)` for each id k of a bag whose row is in this piece and is not padding; `columns` points to the row's columns
/// [first, first + n), and `ahead` to those of a row that `take` should prefetch: the row of a later id, or of a current one near the end of all ids,
/// to keep the loop free of a branch. `kHasAll`: as has_all_rows().
template <bool kHasAll, class T, class Id, class N, class Take>
void for_each_row(const Rows& table, const Bags& bags, const Id* ids, int64_t bag, int64_t first, N n,
                  const Take& take) {
  const auto n_rows = static_cast<uint64_t>(table.n_rows);
  const int64_t first_row = table.first_row, step = table.step * int64_t{sizeof(T)}, end = end_of(bags, bag);
  // The place of row 0 of the table, which this piece need not have.
  const auto begin =
      reinterpret_cast<uintptr_t>(static_cast<const T*>(table.data) + first) - static_cast<uintptr_t>(first_row * step);
  const uint64_t padding = offset_of(bags.padding, first_row);  // without padding: beyond all rows
  const Id* later_ids = end + kAhead <= bags.n_ids ? ids + kAhead : ids;
  const auto at = [&](int64_t id) {
    return reinterpret_cast<const char*>(begin + static_cast<uintptr_t>(id) * static_cast<uintptr_t>(step));
  };
  for (int64_t k = bags.offsets[bag]; k < end; ++k) {
    const int64_t later = later_ids[k], id = ids[k];
    const char* ahead = at(kHasAll || offset_of(later, first_row) < n_rows ? later : first_row);
    if (const uint64_t row = offset_of(id, first_row); kHasAll || (row < n_rows && row != padding))
      take(reinterpret_cast<const T*>(at(id)), k, ahead);
    else
      prefetch(ahead, n * int64_t{sizeof(T)});
  }
}

/// Takes structures by value, so that the compiler knows that writes to `results` do not change them.
template <size_t kBytes, class T, class Id>
void sum_bags(const Rows table, const Bags bags, const Id* ids, bool is_mean, T* results, int64_t begin, int64_t end) {
  const auto* weights = static_cast<const T*>(bags.weights);
  const int64_t width = table.width;
  constexpr bool kMayHaveAll = std::is_same_v<T, Sum<T>>;  // conversions of 16 bits take longer than what this saves
  const bool has_all = kMayHaveAll && weights == nullptr && has_all_rows(table, bags, ids, begin, end);
  for_each_column_block<T, kBytes>(width, [&](int64_t first, const auto& zeros) {
    const auto sum = [&]<bool kHasAll>(std::bool_constant<kHasAll>, const auto& add) {
      for (int64_t bag = begin; bag < end; ++bag) {
        auto block = zeros;
        for_each_row<kHasAll, T>(
            table, bags, ids, bag, first, block.n,
            [&](const T* columns, int64_t k, const char* ahead) { add(block, columns, k, ahead); });
        if (is_mean) block.divide(static_cast<Sum<T>>(std::max<int64_t>(count(bags, ids, bag), 1)));
        block.store(results + bag * width + first);
      }
    };
    const auto add = [](auto& block, const T* columns, int64_t, const char* ahead) {
      block.add_and_prefetch(columns, ahead);
    };
    if (has_all) return sum(std::bool_constant<kMayHaveAll>(), add);
    if (weights == nullptr) return sum(std::false_type(), add);
    sum(std::false_type(), [&](auto& block, const T* columns, int64_t k, const char* ahead) {
      prefetch(ahead, block.n * int64_t{sizeof(T)});
      block.add(columns, load(weights[k]));
    });
  });
}

template <class T, class Id>
void max_bag(const Rows& table, const Bags& bags, const Id* ids, int64_t bag, T* result, int64_t* chosen) {
  const int64_t width = table.width;
  bool is_first = true;
  const auto take = [&](const T* row, int64_t place, const char* ahead) {
    prefetch(ahead, width * int64_t{sizeof(T)});
    for (int64_t c = 0; c < width; ++c) {
      const Sum<T> value = load(row[c]), largest = load(result[c]);
      if (!is_first && !(value > largest || (value != value && largest == largest))) continue;
      result[c] = row[c];
      if (chosen != nullptr) chosen[c] = place;
    }
    is_first = false;
  };
  for_each_row</*kHasAll=*/false, T>(table, bags, ids, bag, 0, width, take);
  if (!is_first) return;
  const Sum<T> value = count(bags, ids, bag) > 0 ? -std::numeric_limits<Sum<T>>::infinity() : 0;
  std::fill_n(result, width, static_cast<T>(value));
  if (chosen != nullptr) std::fill_n(chosen, width, -1);
}

/// `kBytes`: of the widest registers to use.
template <size_t kBytes>
void pool_in(const Rows& table, const Ids& ids, const Bags& bags, Pooling pooling, void* results, int64_t* chosen,
             int64_t begin, int64_t end) {
  with_element(table.element, [&]<class T>(T) {
    with_ids(ids, [&](const auto* id) {
      T* rows = static_cast<T*>(results);
      if (pooling != Pooling::kMax) {
        for (int64_t bag = begin; bag < end; bag += kBagsAtOnce)
          sum_bags<kBytes>(table, bags, id, pooling == Pooling::kMean, rows, bag, std::min(bag + kBagsAtOnce, end));
        return;
      }
      for (int64_t bag = begin; bag < end; ++bag)
        max_bag(table, bags, id, bag, rows + bag * table.width,
                chosen == nullptr ? nullptr : chosen + bag * table.width);
    });
  });
}

}  // namespace

// Versions for several CPUs can only be called in the file that has them all.
#ifdef SHARDWISE_AVX512
SHARDWISE_AVX512 void pool_here(const Rows& table, const Ids& ids, const Bags& bags, Pooling pooling, void* results,
                                int64_t* chosen, int64_t begin, int64_t end) {
  pool_in<kAvx512>(table, ids, bags, pooling, results, chosen, begin, end);
}
SHARDWISE_AVX2 void pool_here(const Rows& table, const Ids& ids, const Bags& bags, Pooling pooling, void* results,
                              int64_t* chosen, int64_t begin, int64_t end) {
  pool_in<kAvx2>(table, ids, bags, pooling, results, chosen, begin, end);
}
#endif
SHARDWISE_BASELINE void pool_here(const Rows& table, const Ids& ids, const Bags& bags, Pooling pooling, void* results,
                                  int64_t* chosen, int64_t begin, int64_t end) {
  pool_in<kAvx2>(table, ids, bags, pooling, results, chosen, begin, end);
}

void pool(const Rows& table, const Ids& ids, const Bags& bags, Pooling pooling, void* results, int64_t* chosen,
          int64_t begin, int64_t end) {
  pool_here(table, ids, bags, pooling, results, chosen, begin, end);
}

SHARDWISE_KERNEL void spread_bags(const Bags& bags, const Ids& ids, Pooling pooling, Element element, int64_t* bag_of,
                                  void* factors, int64_t begin, int64_t end) {
  with_element(element, [&]<class T>(T) {
    with_ids(ids, [&](const auto* id) {
      const auto* weights = static_cast<const T*>(bags.weights);
      auto* factor = static_cast<Sum<T>*>(factors);
      for (int64_t bag = begin; bag < end; ++bag) {
        const Sum<T> n_ids =
            pooling == Pooling::kMean ? static_cast<Sum<T>>(std::max<int64_t>(count(bags, id, bag), 1)) : 1;
        for (int64_t k = bags.offsets[bag]; k < end_of(bags, bag); ++k) {
          bag_of[k] = bag;
          if (factor != nullptr) factor[k] = (weights == nullptr ? 1 : load(weights[k])) / n_ids;
        }
      }
    });
  });
}

SHARDWISE_KERNEL void dot_rows(const Rows& table, const Ids& ids, int64_t padding, const GradRows& grads, void* results,
                               int64_t begin, int64_t end) {
  with_element(table.element, [&]<class T>(T) {
    with_ids(ids, [&](const auto* id) {
      for (int64_t k = begin; k < end; ++k) {
        const auto row = offset_of(id[k], table.first_row);
        const bool counts =
            row < static_cast<uint64_t>(table.n_rows) && (padding < 0 || static_cast<int64_t>(id[k]) != padding);
        const T* values = static_cast<const T*>(table.data) + (counts ? static_cast<int64_t>(row) * table.step : 0);
        const T* grad =
            static_cast<const T*>(grads.data) + (grads.row_of == nullptr ? k : grads.row_of[k]) * grads.step;
        Sum<T> lanes[8] = {};
        if (counts)
          for (int64_t c = 0; c < table.width; ++c) lanes[c & 7] += load(values[c]) * load(grad[c]);
        Sum<T> sum = 0;
        for (const Sum<T> lane : lanes) sum += lane;
        static_cast<T*>(results)[k] = static_cast<T>(sum);
      }
    });
  });
}

}  // namespace shardwise::kernels
