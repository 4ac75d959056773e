#include "kernels/bag_pool.h"

#include "kernels/row_bands.h"

#include <algorithm>

namespace shardwise::kernels {
namespace {

int64_t end_of(const Bags& bags, int64_t bag) { return bag + 1 < bags.n ? bags.offsets[bag + 1] : bags.n_ids; }

/// Of the ids of a bag, those that count.
template <class Id>
int64_t count(const Bags& bags, const Id* ids, int64_t bag) {
  const int64_t begin = bags.offsets[bag], end = end_of(bags, bag);
  if (bags.padding < 0) return end - begin;
  return end - begin - std::count_if(ids + begin, ids + end, [&](Id id) { return int64_t{id} == bags.padding; });
}

/// Calls `take(row, k)` for each id k of a bag whose row is here and counts, and asks for columns [first, first + n) of rows ahead of time.
template <class T, class Id, class N, class Take>
void for_each_row(const Rows& table, const Bags& bags, const Id* ids, int64_t bag, int64_t first, N n,
                  const Take& take) {
  const auto* data = static_cast<const T*>(table.data);
  const auto n_rows = static_cast<uint64_t>(table.n_rows);
  const int64_t first_row = table.first_row, step = table.step, padding = bags.padding, last = bags.n_ids - 1;
  const int64_t end = end_of(bags, bag);
  for (int64_t k = bags.offsets[bag]; k < end; ++k) {
    const uint64_t later = offset_of(ids[std::min(k + kAhead, last)], first_row);
    if (later < n_rows) prefetch(data + static_cast<int64_t>(later) * step + first, n * int64_t{sizeof(T)});
    const uint64_t row = offset_of(ids[k], first_row);
    if (row < n_rows && (padding < 0 || static_cast<int64_t>(ids[k]) != padding))
      take(data + static_cast<int64_t>(row) * step, k);
  }
}

template <class T, class Id>
void sum_bag(const Rows& table, const Bags& bags, const Id* ids, int64_t bag, bool is_mean, T* result) {
  const auto divisor = static_cast<Sum<T>>(is_mean ? std::max<int64_t>(count(bags, ids, bag), 1) : 1);
  const auto* weights = static_cast<const T*>(bags.weights);
  for_each_band<T>(table.width, [&](int64_t first, auto& band) {
    if (weights == nullptr)
      for_each_row<T>(table, bags, ids, bag, first, band.n, [&](const T* row, int64_t) { band.add(row + first); });
    else
      for_each_row<T>(table, bags, ids, bag, first, band.n,
                      [&](const T* row, int64_t k) { band.add(row + first, load(weights[k])); });
    band.give([&](auto n, const Sum<T>* sums) {
      for (int64_t c = 0; c < n; ++c) result[first + c] = static_cast<T>(divisor == 1 ? sums[c] : sums[c] / divisor);
    });
  });
}

template <class T, class Id>
void max_bag(const Rows& table, const Bags& bags, const Id* ids, int64_t bag, double none, T* result, int64_t* chosen) {
  bool is_first = true;
  const auto take = [&](const T* row, int64_t place) {
    for (int64_t c = 0; c < table.width; ++c) {
      const Sum<T> value = load(row[c]), largest = load(result[c]);
      if (!is_first && !(value > largest || (value != value && largest == largest))) continue;
      result[c] = row[c];
      if (chosen != nullptr) chosen[c] = place;
    }
    is_first = false;
  };
  for_each_row<T>(table, bags, ids, bag, 0, table.width, take);
  if (!is_first) return;
  const double value = count(bags, ids, bag) > 0 ? none : 0;
  std::fill_n(result, table.width, static_cast<T>(static_cast<Sum<T>>(value)));
  if (chosen != nullptr) std::fill_n(chosen, table.width, -1);
}

}  // namespace

SHARDWISE_KERNEL void pool(const Rows& table, const Ids& ids, const Bags& bags, Pooling pooling, double none,
                           void* results, int64_t* chosen, int64_t begin, int64_t end) {
  with_element(table.element, [&]<class T>(T) {
    with_ids(ids, [&](const auto* id) {
      for (int64_t bag = begin; bag < end; ++bag) {
        T* result = static_cast<T*>(results) + bag * table.width;
        if (pooling == Pooling::kMax)
          max_bag(table, bags, id, bag, none, result, chosen == nullptr ? nullptr : chosen + bag * table.width);
        else
          sum_bag(table, bags, id, bag, pooling == Pooling::kMean, result);
      }
    });
  });
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
