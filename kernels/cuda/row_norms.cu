// kernels/cuda/row_norms.cu: norms of rows, with one team per row.
#include "kernels/cuda/elements.h"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/launch.h"

#include <cmath>

namespace shardwise::kernels::cuda {
namespace {

/// A column's term of a norm. For infinite norms, the result is the largest term, or NaN.
struct Power {
  double p;

  __device__ double of(double x) const {
    if (p == 2) return x * x;
    if (p == 1 || isinf(p)) return fabs(x);
    return p == 0 ? x != 0 : pow(fabs(x), p);
  }
  __device__ double together(double a, double b) const {
    if (!isinf(p)) return a + b;
    return b > a || isnan(b) ? b : a;
  }
  __device__ double norm(double power) const {
    if (p == 2) return sqrt(power);
    return p == 1 || p == 0 || isinf(p) ? power : pow(power, 1 / p);
  }
};

template <class T, int kN>
__global__ void __launch_bounds__(kThreads)
    find_powers(Rows table, const int64_t* rows, int64_t n, Power power, double* results) {
  const int64_t i = team_index();
  if (i >= n) return;
  const T* row = static_cast<const T*>(table.data) + rows[i] * table.step;
  double result = 0;
  for (int64_t column = int64_t{threadIdx.x} * kN; column < table.width; column += int64_t{blockDim.x} * kN) {
    const auto pack = load<kN>(row + column);
#pragma unroll
    for (int c = 0; c < kN; ++c)
      result = power.together(result, power.of(static_cast<double>(static_cast<Sum<T>>(pack.at[c]))));
  }
  for (unsigned step = blockDim.x / 2; step > 0; step /= 2)
    result = power.together(result, __shfl_xor_sync(team_mask(), result, step));
  if (threadIdx.x == 0) results[i] = result;
}

template <class T, int kN>
__global__ void __launch_bounds__(kThreads)
    scale_rows(Rows table, const int64_t* rows, int64_t n, Power power, double max_norm, const double* powers) {
  const int64_t i = team_index();
  if (i >= n) return;
  const double norm = power.norm(powers[i]);
  if (!(norm > max_norm)) return;
  const auto factor = static_cast<Sum<T>>(max_norm / (norm + 1e-7));
  T* row = static_cast<T*>(table.data) + rows[i] * table.step;
  for (int64_t column = int64_t{threadIdx.x} * kN; column < table.width; column += int64_t{blockDim.x} * kN) {
    const auto pack = load<kN>(row + column);
    Sum<T> scaled[kN];
#pragma unroll
    for (int c = 0; c < kN; ++c) scaled[c] = static_cast<Sum<T>>(pack.at[c]) * factor;
    store_sums(row + column, scaled);
  }
}

}  // namespace

void row_powers(const Rows& table, const int64_t* rows, int64_t n, double p, double* results, void* stream) {
  with_packs(table.element, alignment_of_rows(table), [&]<class T, int kN>(T, Columns<kN>) {
    const Teams teams(std::max<int64_t>(1, divided_up(table.width, kN)));
    launch("row_powers", find_powers<T, kN>, teams, n, 1, true, stream, table, rows, n, Power{p}, results);
  });
}

void shorten_rows(const Rows& table, const int64_t* rows, int64_t n, double p, double max_norm, const double* powers,
                  void* stream) {
  with_packs(table.element, alignment_of_rows(table), [&]<class T, int kN>(T, Columns<kN>) {
    const Teams teams(divided_up(table.width, kN));
    launch("shorten_rows", scale_rows<T, kN>, teams, n, 1, true, stream, table, rows, n, Power{p}, max_norm, powers);
  });
}

}  // namespace shardwise::kernels::cuda
