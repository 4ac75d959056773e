// kernels/cuda/group_sum.h: the sums of the gradients of groups of any length, in a fixed order. Only for sources of this folder.
//
// The places of the order are split into stretches. A group within one stretch is summed by one team. A group that spans several stretches
// has a part in each; one team per part sums it into `parts`, and one block then adds the parts up. A stretch has at most two such parts:
// the end (or middle) of a group from before, and the beginning of a group that continues.
//
//   stretches   |0 . . . . . . .|8 . . . . . . .|16. . .      starts 0 3 6 18 20
//   groups       a a a b b b c c c c c c c c c c c c d d      parts: c in stretch 0 (1), stretch 1 (2), stretch 2 (4)
#pragma once

#include "kernels/cuda/elements.h"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/launch.h"

namespace shardwise::kernels::cuda {

inline constexpr int64_t kStretch = 128;  // places
inline constexpr int kGroups = 8;         // per team; the memory of all is requested before the first is summed

/// Adds the gradients at kCount places of the order. Issues all loads before it needs the first result.
template <int kCount, class T, int kN>
__device__ void add_places(const GradRows& grads, const int64_t* order, int64_t column, Sum<T> (&sum)[kN], const T*) {
  int64_t ids[kCount], rows[kCount];
  Pack<T, kN> packs[kCount];
#pragma unroll
  for (int i = 0; i < kCount; ++i) ids[i] = order[i];
#pragma unroll
  for (int i = 0; i < kCount; ++i) rows[i] = grads.row_of == nullptr ? ids[i] : grads.row_of[ids[i]];
#pragma unroll
  for (int i = 0; i < kCount; ++i)
    packs[i] = load<kN>(static_cast<const T*>(grads.data) + rows[i] * grads.step + column);
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    const Sum<T> factor = grads.factors == nullptr ? Sum<T>{1} : static_cast<const Sum<T>*>(grads.factors)[ids[i]];
    const int64_t* chosen = grads.chosen == nullptr ? nullptr : grads.chosen + rows[i] * grads.width + column;
#pragma unroll
    for (int c = 0; c < kN; ++c)
      if (chosen == nullptr || chosen[c] == ids[i]) sum[c] += factor * static_cast<Sum<T>>(packs[i].at[c]);
  }
}

template <class T, int kN>
__device__ void sum_places(const GradRows& grads, const int64_t* order, int64_t begin, int64_t end, int64_t column,
                           Sum<T> (&sum)[kN]) {
  constexpr const T* kType = nullptr;
  for (; begin + 2 <= end; begin += 2) add_places<2>(grads, order + begin, column, sum, kType);
  if (begin < end) add_places<1>(grads, order + begin, column, sum, kType);
}

/// The group of a place before starts[groups.n]. All threads of a team call it, and each probes one start per round.
__device__ inline int64_t group_at(const Groups& groups, int64_t place) {
  int64_t low = 0, high = groups.n;  // starts[low] <= place < starts[high]
  while (high - low > 1) {
    const int64_t step = divided_up(high - low, int64_t{blockDim.x} + 1), probe = low + (threadIdx.x + 1) * step;
    low += step * team_sum(probe < high && groups.starts[probe] <= place ? 1 : 0);
    high = low + step < high ? low + step : high;
  }
  return low;
}

/// The places that a team sums: a whole group, or a part of one.
struct Piece {
  int64_t begin;
  int64_t end;
  int64_t group;  // -1 for a part
  __device__ bool is_empty() const { return begin >= end; }
};

__device__ inline Piece piece_of_group(const Groups& groups, int64_t group) {
  const int64_t begin = groups.starts[group], end = groups.starts[group + 1];
  return begin / kStretch == (end - 1) / kStretch ? Piece{begin, end, group} : Piece{};
}

/// Part 2 s is that of the group which enters stretch s from before. Part 2 s + 1 is that of the group which begins in stretch s and
/// continues after it.
__device__ inline Piece piece_of_part(const Groups& groups, int64_t part) {
  const int64_t n_places = groups.starts[groups.n], low = part / 2 * kStretch, high = low + kStretch;
  const bool enters = part % 2 == 0;
  const int64_t edge = enters ? low : high;
  if (edge == 0 || edge >= n_places) return {};
  const int64_t group = group_at(groups, edge), begin = groups.starts[group], end = groups.starts[group + 1];
  if (begin == edge) return {};
  if (enters) return {low, end < high ? end : high, -1};
  return begin < low ? Piece{} : Piece{begin, high, -1};
}

/// Prefetches the first gradient of a group.
inline __device__ void prefetch_place(const GradRows& grads, const int64_t* order, int64_t place) {
  const int64_t id = order[place], row = grads.row_of == nullptr ? id : grads.row_of[id],
                bytes = size_of(grads.element);
  prefetch(static_cast<const char*>(grads.data) + row * grads.step * bytes, grads.width * bytes);
}

template <class T, int kN, class Sink>
__device__ void sum_piece(const GradRows& grads, const Groups& groups, const Piece& piece, int64_t part, int64_t tiles,
                          Sum<T>* parts, Sink sink) {
  for (int64_t tile = blockIdx.y; tile < tiles; tile += gridDim.y) {
    const int64_t column = (tile * blockDim.x + threadIdx.x) * kN;
    const bool is_in_row = column < grads.width;
    Sum<T> sum[kN] = {};
    if (is_in_row) sum_places<T, kN>(grads, groups.order, piece.begin, piece.end, column, sum);
    if (piece.group >= 0)
      sink.take(piece.group, tile, column, is_in_row, sum);
    else if (is_in_row)
      store_sums(parts + part * grads.width + column, sum);
  }
  if (piece.group >= 0) sink.end(piece.group);
}

/// The first teams take kGroups groups each, the other teams take a part each. One thread per group calls `Sink::prefetch(group)`. Then
/// each group has its own copy of the sink: all threads of the team call `take(group, tile, column, is_in_row, sum)` for each tile, and
/// `end(group)` at the end.
template <class T, int kN, class Sink>
__global__ void __launch_bounds__(kThreads) sum_pieces(GradRows grads, Groups groups, int64_t n_parts, int64_t tiles,
                                                       Sum<T>* parts, const __grid_constant__ Sink sink) {
  const int64_t index = team_index(), part = index - divided_up(groups.n, kGroups);
  if (part >= n_parts) return;
  if (part >= 0) {
    if (const Piece piece = piece_of_part(groups, part); !piece.is_empty())
      sum_piece<T, kN>(grads, groups, piece, part, tiles, parts, sink);
    return;
  }
  const int64_t first = index * kGroups, last = first + kGroups < groups.n ? first + kGroups : groups.n;
  for (int64_t group = first + threadIdx.x; group < last; group += blockDim.x) {
    prefetch_place(grads, groups.order, groups.starts[group]);
    sink.prefetch(group);
  }
  for (int64_t group = first; group < last; ++group)
    if (const Piece piece = piece_of_group(groups, group); !piece.is_empty())
      sum_piece<T, kN>(grads, groups, piece, -1, tiles, parts, sink);
}

/// Block s adds up the parts of the group that begins in stretch s and continues in stretch s + 1. Each team sums some of the parts, then
/// the first team adds up the teams' results.
template <class T, int kN, class Sink>
__global__ void __launch_bounds__(kThreads)
    add_parts(GradRows grads, Groups groups, int64_t tiles, const Sum<T>* parts, Sink sink) {
  __shared__ Sum<T> shares[kN][kThreads];
  const int64_t stretch = blockIdx.x, edge = (stretch + 1) * kStretch;
  if (edge >= groups.starts[groups.n]) return;
  const int64_t group = group_at(groups, edge), begin = groups.starts[group];
  if (begin == edge || begin / kStretch != stretch) return;
  const int64_t n_parts = (groups.starts[group + 1] - 1) / kStretch - stretch + 1;
  const unsigned thread = threadIdx.y * blockDim.x + threadIdx.x;
  for (int64_t tile = blockIdx.y; tile < tiles; tile += gridDim.y) {
    const int64_t column = (tile * blockDim.x + threadIdx.x) * kN;
    const bool is_in_row = column < grads.width;
    Sum<T> sum[kN] = {};
    for (int64_t p = threadIdx.y; p < n_parts && is_in_row; p += blockDim.y) {
      const auto pack = load<kN>(parts + (2 * (stretch + p) + (p == 0 ? 1 : 0)) * grads.width + column);
#pragma unroll
      for (int c = 0; c < kN; ++c) sum[c] += pack.at[c];
    }
#pragma unroll
    for (int c = 0; c < kN; ++c) shares[c][thread] = sum[c];
    __syncthreads();
    if (threadIdx.y == 0) {
      for (unsigned team = 1; team < blockDim.y && team < n_parts; ++team)
#pragma unroll
        for (int c = 0; c < kN; ++c) sum[c] += shares[c][team * blockDim.x + threadIdx.x];
      sink.take(group, tile, column, is_in_row, sum);
    }
    __syncthreads();
  }
  if (threadIdx.y == 0) sink.end(group);
}

inline int64_t stretches(int64_t n_ids) { return divided_up(n_ids, kStretch); }

/// Passes each group's sum to `sink`.
template <class T, int kN, class Sink>
void for_each_sum(const char* name, const GradRows& grads, const Groups& groups, bool rows_stay_whole, void* scratch,
                  void* stream, const Sink& sink) {
  if (groups.n == 0) return;
  const Teams teams(std::max<int64_t>(1, divided_up(grads.width, kN)));  // rows without columns have numbers per row
  auto* parts = static_cast<Sum<T>*>(scratch);
  const int64_t n_stretches = stretches(groups.n_ids), n_parts = n_stretches == 1 ? 0 : 2 * n_stretches;
  launch(name, sum_pieces<T, kN, Sink>, teams, divided_up(groups.n, kGroups) + n_parts, 1, rows_stay_whole, stream,
         grads, groups, n_parts, teams.tiles, parts, sink);
  launch(name, add_parts<T, kN, Sink>, teams, (n_stretches - 1) * teams.per_block(), 1, rows_stay_whole, stream, grads,
         groups, teams.tiles, parts, sink);
}

}  // namespace shardwise::kernels::cuda
