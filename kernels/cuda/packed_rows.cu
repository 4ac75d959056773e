// kernels/cuda/packed_rows.cu: one team per result row; each thread has a word of four columns.
#include "kernels/cuda/elements.h"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/launch.h"
#include "kernels/stochastic_rounding.h"

#include <cmath>

namespace shardwise::kernels::cuda {
namespace {

constexpr int kColumns = 4;  // per word

struct PackedRow {
  const unsigned* words;  // null: not in this piece
  float scale;
  float offset;
};

__device__ PackedRow packed_row(const PackedRows& table, int64_t id) {
  const uint64_t row = static_cast<uint64_t>(id) - static_cast<uint64_t>(table.first_row);
  if (row >= static_cast<uint64_t>(table.n_rows)) return {nullptr, 0, 0};
  const int64_t n_words = packed_words(table.width);
  const auto* words = static_cast<const unsigned*>(table.data) + static_cast<int64_t>(row) * n_words;
  return {words, float_of(words[n_words - 2]), float_of(words[n_words - 1])};
}

template <class S>
__device__ S unpacked(const PackedRow& row, unsigned word, int c) {
  return static_cast<S>(row.scale) * static_cast<S>(word >> (8 * c) & 0xff) + static_cast<S>(row.offset);
}

__device__ bool counts(const Bags& bags, int64_t id) { return bags.padding < 0 || id != bags.padding; }

/// The first of this thread's columns, and the step to its next ones.
__device__ int64_t first_column() { return (int64_t{blockIdx.y} * blockDim.x + threadIdx.x) * kColumns; }
__device__ int64_t column_step() { return int64_t{gridDim.y} * blockDim.x * kColumns; }

template <class T>
__global__ void __launch_bounds__(kThreads) unpack(PackedRows table, Ids ids, T* results, int64_t result_step) {
  const int64_t i = team_index();
  if (i >= ids.n) return;
  const PackedRow row = packed_row(table, id_at(ids, i));
  if (row.words == nullptr) return;
  for (int64_t column = first_column(); column < table.width; column += column_step()) {
    const unsigned word = row.words[column / kColumns];
#pragma unroll
    for (int c = 0; c < kColumns; ++c)
      if (column + c < table.width)
        results[i * result_step + column + c] = static_cast<T>(unpacked<Sum<T>>(row, word, c));
  }
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    pool_bags(PackedRows table, Ids ids, Bags bags, Pooling pooling, T* results, int64_t* chosen) {
  using S = Sum<T>;
  const int64_t b = team_index();
  if (b >= bags.n) return;
  const int64_t begin = bags.offsets[b], end = b + 1 < bags.n ? bags.offsets[b + 1] : bags.n_ids;
  const auto* weights = static_cast<const T*>(bags.weights);
  for (int64_t column = first_column(); column < table.width; column += column_step()) {
    S values[kColumns] = {};
    int64_t places[kColumns] = {-1, -1, -1, -1}, n_counting = 0;
    for (int64_t k = begin; k < end; ++k) {
      const int64_t id = id_at(ids, k);
      if (!counts(bags, id)) continue;
      ++n_counting;
      const PackedRow row = packed_row(table, id);
      if (row.words == nullptr) continue;
      const unsigned word = row.words[column / kColumns];
      const S weight = weights == nullptr ? S{1} : static_cast<S>(weights[k]);
#pragma unroll
      for (int c = 0; c < kColumns; ++c) {
        const S value = unpacked<S>(row, word, c);
        if (pooling != Pooling::kMax) {
          values[c] += weight * value;
        } else if (places[c] < 0 || static_cast<S>(static_cast<T>(value)) > static_cast<S>(static_cast<T>(values[c]))) {
          values[c] = value;
          places[c] = k;
        }
      }
    }
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
      if (column + c >= table.width) continue;
      const int64_t at = b * table.width + column + c;
      if (pooling == Pooling::kMean && n_counting > 1) values[c] /= static_cast<S>(n_counting);
      if (pooling == Pooling::kMax && places[c] < 0) values[c] = n_counting > 0 ? S{-INFINITY} : S{0};
      results[at] = static_cast<T>(values[c]);
      if (pooling == Pooling::kMax && chosen != nullptr) chosen[at] = places[c];
    }
  }
}

}  // namespace

void look_up_packed(const PackedRows& table, const Ids& ids, Element element, void* results, int64_t result_step,
                    void* stream) {
  with_packs(element, 1, [&]<class T, int kN>(T, Columns<kN>) {
    launch("look_up_packed", unpack<T>, Teams(divided_up(table.width, kColumns)), ids.n, 1, false, stream, table, ids,
           static_cast<T*>(results), result_step);
  });
}

void pool_packed(const PackedRows& table, const Ids& ids, const Bags& bags, Pooling pooling, Element element,
                 void* results, int64_t* chosen, void* stream) {
  with_packs(element, 1, [&]<class T, int kN>(T, Columns<kN>) {
    launch("pool_packed", pool_bags<T>, Teams(divided_up(table.width, kColumns)), bags.n, 1, false, stream, table, ids,
           bags, pooling, static_cast<T*>(results), chosen);
  });
}

}  // namespace shardwise::kernels::cuda
