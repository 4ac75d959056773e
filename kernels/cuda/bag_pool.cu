// kernels/cuda/bag_pool.cu: one team per bag, which loads several rows before it needs the first.
#include "kernels/cuda/elements.h"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/launch.h"

#include <cmath>

namespace shardwise::kernels::cuda {
namespace {

constexpr int kRows = 4;  // in flight per thread

struct Bag {
  int64_t begin;
  int64_t end;
  __device__ Bag(const Bags& bags, int64_t bag)
      : begin(bags.offsets[bag]), end(bag + 1 < bags.n ? bags.offsets[bag + 1] : bags.n_ids) {}
};

__device__ bool is_padding(const Bags& bags, int64_t id) { return bags.padding >= 0 && id == bags.padding; }

/// Calls `use(k, pack)` in order for each id k of the bag whose row is in this piece. Returns the number of ids that count, including those
/// of other pieces.
template <int kN, class T, class Use>
__device__ int64_t for_each_row(const Rows& table, const Ids& ids, const Bags& bags, const Bag& bag, int64_t column,
                                const T*, const Use& use) {
  int64_t n_counting = 0;
  for (int64_t first = bag.begin; first < bag.end; first += kRows) {
    const T* rows[kRows];
    Pack<T, kN> packs[kRows];
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      rows[r] = nullptr;
      if (first + r >= bag.end) continue;
      const int64_t id = id_at(ids, first + r);
      if (is_padding(bags, id)) continue;
      ++n_counting;
      rows[r] = static_cast<const T*>(row_at(table, id));
    }
#pragma unroll
    for (int r = 0; r < kRows; ++r)
      if (rows[r] != nullptr) packs[r] = load<kN>(rows[r] + column);
#pragma unroll
    for (int r = 0; r < kRows; ++r)
      if (rows[r] != nullptr) use(first + r, packs[r]);
  }
  return n_counting;
}

template <class T, int kN>
__global__ void __launch_bounds__(kThreads) sum_bags(Rows table, Ids ids, Bags bags, bool is_mean, T* results) {
  const int64_t index = team_index();
  if (index >= bags.n) return;
  const Bag bag(bags, index);
  const auto* weights = static_cast<const T*>(bags.weights);
  const int64_t width = table.width, step = int64_t{gridDim.y} * blockDim.x * kN;
  for (int64_t column = (int64_t{blockIdx.y} * blockDim.x + threadIdx.x) * kN; column < width; column += step) {
    Sum<T> sum[kN] = {};
    const auto add = [&](int64_t k, const Pack<T, kN>& pack) {
      const Sum<T> weight = weights == nullptr ? Sum<T>{1} : static_cast<Sum<T>>(weights[k]);
#pragma unroll
      for (int c = 0; c < kN; ++c) sum[c] += weight * static_cast<Sum<T>>(pack.at[c]);
    };
    const int64_t n = for_each_row<kN>(table, ids, bags, bag, column, static_cast<const T*>(nullptr), add);
    if (is_mean && n > 1)
#pragma unroll
      for (int c = 0; c < kN; ++c) sum[c] /= static_cast<Sum<T>>(n);
    store_sums(results + index * width + column, sum);
  }
}

template <class T, int kN>
__global__ void __launch_bounds__(kThreads) max_bags(Rows table, Ids ids, Bags bags, T* results, int64_t* chosen) {
  const int64_t index = team_index();
  if (index >= bags.n) return;
  const Bag bag(bags, index);
  const int64_t width = table.width, step = int64_t{gridDim.y} * blockDim.x * kN;
  for (int64_t column = (int64_t{blockIdx.y} * blockDim.x + threadIdx.x) * kN; column < width; column += step) {
    Sum<T> largest[kN];
    int64_t places[kN];
#pragma unroll
    for (int c = 0; c < kN; ++c) largest[c] = -INFINITY, places[c] = -1;
    const auto compare = [&](int64_t k, const Pack<T, kN>& pack) {
#pragma unroll
      for (int c = 0; c < kN; ++c) {
        const auto value = static_cast<Sum<T>>(pack.at[c]);
        const bool is_larger = value > largest[c] || (value != value && largest[c] == largest[c]);
        if (places[c] >= 0 && !is_larger) continue;
        largest[c] = value;
        places[c] = k;
      }
    };
    const int64_t n = for_each_row<kN>(table, ids, bags, bag, column, static_cast<const T*>(nullptr), compare);
    if (n == 0)
#pragma unroll
      for (int c = 0; c < kN; ++c) largest[c] = 0;
    store_sums(results + index * width + column, largest);
    if (chosen == nullptr) continue;
#pragma unroll
    for (int c = 0; c < kN; ++c) chosen[index * width + column + c] = places[c];
  }
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    write_spread(Bags bags, Ids ids, bool is_mean, int64_t* bag_of, Sum<T>* factors) {
  const int64_t index = team_index();
  if (index >= bags.n) return;
  const Bag bag(bags, index);
  int64_t n = 1;
  if (is_mean && factors != nullptr) {
    n = bag.end - bag.begin;
    if (bags.padding >= 0) {
      n = 0;
      for (int64_t k = bag.begin + threadIdx.x; k < bag.end; k += blockDim.x) n += !is_padding(bags, id_at(ids, k));
      n = team_sum(n);
    }
    n = n > 1 ? n : 1;
  }
  const auto* weights = static_cast<const T*>(bags.weights);
  for (int64_t k = bag.begin + threadIdx.x; k < bag.end; k += blockDim.x) {
    bag_of[k] = index;
    if (factors != nullptr)
      factors[k] = (weights == nullptr ? Sum<T>{1} : static_cast<Sum<T>>(weights[k])) / static_cast<Sum<T>>(n);
  }
}

template <class T, int kN>
__global__ void __launch_bounds__(kThreads) dot(Rows table, Ids ids, int64_t padding, GradRows grads, T* results) {
  const int64_t k = team_index();
  if (k >= ids.n) return;
  const int64_t id = id_at(ids, k), row = padding >= 0 && id == padding ? -1 : row_of(table, id);
  Sum<T> sum = 0;
  if (row >= 0) {
    const T* values = static_cast<const T*>(table.data) + row * table.step;
    const T* grad = static_cast<const T*>(grads.data) + (grads.row_of == nullptr ? k : grads.row_of[k]) * grads.step;
    for (int64_t column = int64_t{threadIdx.x} * kN; column < table.width; column += int64_t{blockDim.x} * kN) {
      const auto value = load<kN>(values + column), by = load<kN>(grad + column);
#pragma unroll
      for (int c = 0; c < kN; ++c) sum += static_cast<Sum<T>>(value.at[c]) * static_cast<Sum<T>>(by.at[c]);
    }
  }
  sum = team_sum(sum);
  if (threadIdx.x == 0) results[k] = static_cast<T>(sum);
}

}  // namespace

void pool(const Rows& table, const Ids& ids, const Bags& bags, Pooling pooling, void* results, int64_t* chosen,
          void* stream) {
  const int64_t alignment = std::min(alignment_of_rows(table), alignment_of({results}, {}));
  with_packs(table.element, alignment, [&]<class T, int kN>(T, Columns<kN>) {
    const Teams teams(divided_up(table.width, kN));
    auto* into = static_cast<T*>(results);
    if (pooling == Pooling::kMax)
      launch("pool", max_bags<T, kN>, teams, bags.n, 1, false, stream, table, ids, bags, into, chosen);
    else
      launch("pool", sum_bags<T, kN>, teams, bags.n, 1, false, stream, table, ids, bags, pooling == Pooling::kMean,
             into);
  });
}

void spread_bags(const Bags& bags, const Ids& ids, Pooling pooling, Element element, int64_t* bag_of, void* factors,
                 void* stream) {
  with_packs(element, 1, [&]<class T, int kN>(T, Columns<kN>) {
    launch("spread_bags", write_spread<T>, Teams(8), bags.n, 1, true, stream, bags, ids, pooling == Pooling::kMean,
           bag_of, static_cast<Sum<T>*>(factors));
  });
}

void dot_rows(const Rows& table, const Ids& ids, int64_t padding, const GradRows& grads, void* results, void* stream) {
  const int64_t bytes = size_of(table.element);
  const int64_t alignment =
      alignment_of({table.data, grads.data}, {table.step * bytes, grads.step * bytes, table.width * bytes});
  with_packs(table.element, alignment, [&]<class T, int kN>(T, Columns<kN>) {
    const Teams teams(std::max<int64_t>(1, divided_up(table.width, kN)));
    launch("dot_rows", dot<T, kN>, teams, ids.n, 1, true, stream, table, ids, padding, grads, static_cast<T*>(results));
  });
}

}  // namespace shardwise::kernels::cuda
