// kernels/cuda/elements.h: packs of elements, ids, and reductions over a team's threads. Only for sources of this folder.
#pragma once

#include "kernels/rows.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <initializer_list>
#include <type_traits>

namespace shardwise::kernels::cuda {

/// The type of sums of T.
template <class T>
using Sum = std::conditional_t<std::is_same_v<T, double>, double, float>;

/// The type of one memory access.
template <int kBytes>
struct WordOf;
template <>
struct WordOf<2> : std::type_identity<unsigned short> {};
template <>
struct WordOf<4> : std::type_identity<unsigned> {};
template <>
struct WordOf<8> : std::type_identity<uint2> {};
template <>
struct WordOf<16> : std::type_identity<uint4> {};

/// Adjacent columns: at most 16 bytes of elements (32 bytes of their sums).
template <class T, int kN>
struct alignas(sizeof(T) * kN < 16 ? sizeof(T) * kN : 16) Pack {
  using Word = typename WordOf<(sizeof(T) * kN < 16 ? sizeof(T) * kN : 16)>::type;
  static constexpr int kWords = sizeof(T) * kN / sizeof(Word);
  T at[kN];
};

// Loads go word by word and stores use an intrinsic, because nvcc 13.0 splits some plain stores into elements.
template <int kN, class T>
__device__ Pack<T, kN> load(const T* from) {
  using Word = typename Pack<T, kN>::Word;
  Pack<T, kN> pack;
#pragma unroll
  for (int w = 0; w < Pack<T, kN>::kWords; ++w)
    reinterpret_cast<Word*>(&pack)[w] = reinterpret_cast<const Word*>(from)[w];
  return pack;
}

template <int kN, class T>
__device__ void store(T* into, const Pack<T, kN>& pack) {
  using Word = typename Pack<T, kN>::Word;
#pragma unroll
  for (int w = 0; w < Pack<T, kN>::kWords; ++w)
    __stwb(reinterpret_cast<Word*>(into) + w, reinterpret_cast<const Word*>(&pack)[w]);
}

/// Requests bytes ahead of their use. No register waits for them.
__device__ inline void prefetch([[maybe_unused]] const void* from, [[maybe_unused]] int64_t n_bytes) {
#ifdef __CUDA_ARCH__
#if __CUDA_ARCH__ >= 900
  if ((reinterpret_cast<uint64_t>(from) | static_cast<uint64_t>(n_bytes)) % 16 == 0) {
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(from), "r"(static_cast<unsigned>(n_bytes)));
    return;
  }
#endif
  for (int64_t byte = 0; byte < n_bytes; byte += 128)
    asm volatile("prefetch.global.L2 [%0];" ::"l"(static_cast<const char*>(from) + byte));
#endif
}

template <class T, int kN>
__device__ void store_sums(T* into, const Sum<T> (&sums)[kN]) {
  Pack<T, kN> pack;
#pragma unroll
  for (int c = 0; c < kN; ++c) pack.at[c] = static_cast<T>(sums[c]);
  store<kN>(into, pack);
}

/// The largest power of two, up to 16, that divides all the addresses and byte counts.
inline int64_t alignment_of(std::initializer_list<const void*> addresses, std::initializer_list<int64_t> n_bytes) {
  uint64_t bits = 16;
  for (const void* address : addresses) bits |= reinterpret_cast<uint64_t>(address);
  for (const int64_t n : n_bytes) bits |= static_cast<uint64_t>(n);
  return static_cast<int64_t>(bits & (~bits + 1));
}

__host__ __device__ inline int64_t divided_up(int64_t n, int64_t by) { return (n + by - 1) / by; }

template <int kN>
using Columns = std::integral_constant<int, kN>;

/// Calls `body(T{}, Columns<kN>{})` with the type of `element` and the columns of a pack: 16 bytes if the alignment is 16, otherwise one.
template <class Body>
void with_packs(Element element, int64_t alignment, const Body& body) {
  const auto with = [&](auto zero) {
    using T = decltype(zero);
    if (alignment == 16)
      body(zero, Columns<16 / sizeof(T)>{});
    else
      body(zero, Columns<1>{});
  };
  switch (element) {
    case Element::kFloat:
      return with(float{});
    case Element::kDouble:
      return with(double{});
    case Element::kBFloat16:
      return with(__nv_bfloat16{});
    case Element::kHalf:
      return with(__half{});
  }
}

__device__ inline int64_t id_at(const Ids& ids, int64_t i) {
  return ids.are_int32 ? static_cast<const int32_t*>(ids.data)[i] : static_cast<const int64_t*>(ids.data)[i];
}

/// The index in the piece of an id's row; -1 if it is not in the piece. Computed unsigned, so that no invalid id overflows.
__device__ inline int64_t row_of(const Rows& table, int64_t id) {
  const uint64_t row = static_cast<uint64_t>(id) - static_cast<uint64_t>(table.first_row);
  return row < static_cast<uint64_t>(table.n_rows) ? static_cast<int64_t>(row) : -1;
}

/// The address of an id's row; null if the row is not in the piece.
__device__ inline const void* row_at(const Rows& table, int64_t id) {
  const int64_t row = row_of(table, id);
  return row < 0 ? nullptr : static_cast<const char*>(table.data) + row * table.step * size_of(table.element);
}

/// The alignment of all rows.
inline int64_t alignment_of_rows(const Rows& table) {
  const int64_t bytes = size_of(table.element);
  return alignment_of({table.data}, {table.step * bytes, table.width * bytes});
}

/// This thread's team in the grid. The team's threads are threadIdx.x = 0 .. blockDim.x - 1, see Teams.
__device__ inline int64_t team_index() { return int64_t{blockIdx.x} * blockDim.y + threadIdx.y; }

/// The bits of this team in its warp. Teams of a warp diverge, so they must not wait for each other.
__device__ inline unsigned team_mask() {
  return blockDim.x == 32 ? ~0u : ((1u << blockDim.x) - 1) << ((threadIdx.y * blockDim.x) & 31);
}

/// The sum of `value` over the team, the same for each of its threads.
template <class Value>
__device__ Value team_sum(Value value) {
  for (unsigned step = blockDim.x / 2; step > 0; step /= 2) value += __shfl_xor_sync(team_mask(), value, step);
  return value;
}

/// The value of the team's first thread.
template <class Value>
__device__ Value team_first(Value value) {
  return __shfl_sync(team_mask(), value, 0, blockDim.x);
}

}  // namespace shardwise::kernels::cuda
