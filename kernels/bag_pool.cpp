#include "kernels/bag_pool.h"

#include "kernels/elements.h"

#include <algorithm>

namespace shardwise::kernels {
namespace {

constexpr int64_t kBand = 64;  // columns pooled at a time: float32 sums of so many stay in registers

int64_t end_of(const Bags& bags, int64_t bag) { return bag + 1 < bags.n ? bags.offsets[bag + 1] : bags.n_ids; }

/// Of the ids of a bag, those that count.
template <class Id>
int64_t count(const Bags& bags, const Id* ids, int64_t bag) {
  const int64_t begin = bags.offsets[bag], end = end_of(bags, bag);
  if (bags.padding < 0) return end - begin;
  return end - begin - std::count_if(ids + begin, ids + end, [&](Id id) { return int64_t{id} == bags.padding; });
}

/// Calls `use(k, row)` for each id k of a bag whose row is here, and asks for rows ahead of time.
template <class T, class Id, class Use>
void for_each_row(const Rows& table, const Bags& bags, const Id* ids, int64_t bag, const Use& use) {
  const auto n_rows = static_cast<uint64_t>(table.n_rows);
  const auto row_of = [&](int64_t k) { return offset_of(ids[k], table.first_row); };
  const auto at = [&](uint64_t row) {
    return static_cast<const T*>(table.data) + static_cast<int64_t>(row) * table.step;
  };
  const int64_t end = end_of(bags, bag);
  for (int64_t k = bags.offsets[bag]; k < end; ++k) {
    if (k + kAhead < bags.n_ids)
      if (const uint64_t later = row_of(k + kAhead); later < n_rows)
        prefetch(at(later), table.width * static_cast<int64_t>(sizeof(T)));
    const uint64_t row = row_of(k);
    if (row < n_rows && (bags.padding < 0 || static_cast<int64_t>(ids[k]) != bags.padding)) use(k, at(row));
  }
}

/// Columns [first, first + n) of a bag's sum over `divisor`. `Columns`: a constant where n is one.
template <class T, class Id, class Columns>
void sum_columns(const Rows& table, const Bags& bags, const Id* ids, int64_t bag, int64_t first, Columns n,
                 Sum<T> divisor, T* result) {
  alignas(64) Sum<T> sum[kBand];  // nobody else can point here
  for (int64_t c = 0; c < n; ++c) sum[c] = 0;
  const auto* weights = static_cast<const T*>(bags.weights);
  if (weights == nullptr)
    for_each_row<T>(table, bags, ids, bag, [&](int64_t, const T* row) {
      for (int64_t c = 0; c < n; ++c) sum[c] += load(row[first + c]);
    });
  else
    for_each_row<T>(table, bags, ids, bag, [&](int64_t k, const T* row) {
      const Sum<T> weight = load(weights[k]);
      for (int64_t c = 0; c < n; ++c) sum[c] += weight * load(row[first + c]);
    });
  if (divisor != 1)
    for (int64_t c = 0; c < n; ++c) sum[c] /= divisor;
  for (int64_t c = 0; c < n; ++c) result[first + c] = static_cast<T>(sum[c]);
}

template <class T, class Id>
void sum_bag(const Rows& table, const Bags& bags, const Id* ids, int64_t bag, bool is_mean, T* result) {
  const auto divisor = static_cast<Sum<T>>(is_mean ? std::max<int64_t>(count(bags, ids, bag), 1) : 1);
  for (int64_t first = 0; first < table.width; first += kBand) {
    if (first + kBand <= table.width)
      sum_columns<T>(table, bags, ids, bag, first, std::integral_constant<int64_t, kBand>{}, divisor, result);
    else
      sum_columns<T>(table, bags, ids, bag, first, table.width - first, divisor, result);
  }
}

template <class T, class Id>
void max_bag(const Rows& table, const Bags& bags, const Id* ids, int64_t bag, double none, T* result, int64_t* chosen) {
  bool is_first = true;
  for_each_row<T>(table, bags, ids, bag, [&](int64_t k, const T* row) {
    for (int64_t c = 0; c < table.width; ++c) {
      const Sum<T> value = load(row[c]), largest = load(result[c]);
      if (!is_first && !(value > largest || (value != value && largest == largest))) continue;
      result[c] = row[c];
      if (chosen != nullptr) chosen[c] = k;
    }
    is_first = false;
  });
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
