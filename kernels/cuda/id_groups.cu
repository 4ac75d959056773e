// kernels/cuda/id_groups.cu: sorts ids with cub's radix sort (Adinets, Merrill, Onesweep, 2022), and numbers groups with its scan.
#include "kernels/cuda/elements.h"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/launch.h"

#include <cub/device/device_radix_sort.cuh>
#include <cub/device/device_scan.cuh>

#undef NDEBUG  // check_rows() is for users' ids
#include <cassert>

namespace shardwise::kernels::cuda {
namespace {

constexpr const char* kName = "group_ids";

int bits_of(int64_t n) { return n <= 1 ? 0 : std::bit_width(static_cast<uint64_t>(n - 1)); }

/// A row and its id's place in one word, as on the CPU. Ids that are skipped or in other pieces get the number of rows.
struct Packing {
  int place_bits;
  __device__ uint64_t pack(int64_t row, int64_t place) const {
    return static_cast<uint64_t>(row) << place_bits | static_cast<uint64_t>(place);
  }
  __device__ int64_t row(uint64_t word) const { return static_cast<int64_t>(word >> place_bits); }
  __device__ int64_t place(uint64_t word) const {
    return static_cast<int64_t>(word & ((uint64_t{1} << place_bits) - 1));
  }
};

/// The parts of scratch memory.
struct Scratch {
  uint64_t* words;
  uint64_t* others;
  int64_t* n_groups;
  void* temporary;

  Scratch(uint64_t* begin, int64_t n)
      : words(begin),
        others(begin + n),
        n_groups(reinterpret_cast<int64_t*>(begin + 2 * n)),
        temporary(begin + 2 * n + 1) {}
};

__global__ void pack_ids(Rows table, Ids ids, int64_t skipped, Packing packing, uint64_t* words) {
  const int64_t i = team_index();
  if (i >= ids.n) return;
  const int64_t id = id_at(ids, i), row = row_of(table, id);
  words[i] = packing.pack(row < 0 || id == skipped ? table.n_rows : row, i);
}

__global__ void mark_firsts(const uint64_t* words, int64_t n, int64_t n_rows, Packing packing, uint64_t* marks) {
  const int64_t i = team_index();
  if (i >= n) return;
  const int64_t row = packing.row(words[i]);
  marks[i] = row < n_rows && (i == 0 || packing.row(words[i - 1]) != row);
}

/// `numbers[i]`: the number of groups that begin at or before word i.
__global__ void write_groups(const uint64_t* words, const uint64_t* numbers, int64_t n, int64_t n_rows, Packing packing,
                             GroupMemory memory, int64_t* n_groups) {
  const int64_t i = team_index();
  if (i >= n) return;
  const int64_t row = packing.row(words[i]), place = packing.place(words[i]);
  const int64_t number = static_cast<int64_t>(numbers[i]);
  const bool counts = row < n_rows;
  if (memory.group_of != nullptr) memory.group_of[place] = counts ? number - 1 : -1;
  if (counts) {
    memory.order[i] = place;
    if (i == 0 || packing.row(words[i - 1]) != row) {
      memory.rows[number - 1] = row;
      memory.starts[number - 1] = i;
    }
  }
  // The end of the grouped words: after the last word, or at the first word without a row.
  const bool is_end = counts ? i + 1 == n : i == 0 || packing.row(words[i - 1]) < n_rows;
  if (!is_end) return;
  memory.starts[number] = counts ? n : i;
  *n_groups = number;
}

__global__ void __launch_bounds__(kThreads) assert_rows(Ids ids, int64_t n_rows) {
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.y * blockDim.x + threadIdx.x; i < ids.n;
       i += int64_t{gridDim.x} * kThreads) {
    const int64_t id = id_at(ids, i);
    assert(id >= 0 && id < n_rows && "an id is no row of the table");
  }
}

__global__ void set_zero(uint64_t* digest) { *digest = 0; }

__global__ void __launch_bounds__(kThreads) find_digest(Ids ids, uint64_t* digest) {
  unsigned long long sum = 0;
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.y * blockDim.x + threadIdx.x; i < ids.n;
       i += int64_t{gridDim.x} * kThreads)
    sum += mixed(id_at(ids, i), i);
  for (unsigned step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(~0u, sum, step);
  if (threadIdx.x == 0) atomicAdd(reinterpret_cast<unsigned long long*>(digest), sum);
}

constexpr int64_t kMostRows = 2048;  // of 32 ids each; warps loop over the rest, so that few atomics meet

}  // namespace

void check_rows(const Ids& ids, int64_t n_rows, void* stream) {
  launch("check_rows", assert_rows, Teams(32), std::min(kMostRows, divided_up(ids.n, 32)), 1, true, stream, ids,
         n_rows);
}

void digest_of(const Ids& ids, uint64_t* digest, void* stream) {
  const Teams one(1), warps(32);
  launch("digest_of", set_zero, one, 1, 1, true, stream, digest);
  launch("digest_of", find_digest, warps, std::min(kMostRows, divided_up(ids.n, 32)), 1, true, stream, ids, digest);
}

int64_t group_scratch(int64_t n_ids) {
  cub::DoubleBuffer<uint64_t> words(nullptr, nullptr);
  uint64_t* numbers = nullptr;
  size_t sort_bytes = 0, scan_bytes = 0;
  check(cub::DeviceRadixSort::SortKeys(nullptr, sort_bytes, words, n_ids, 0, 64), kName);
  check(cub::DeviceScan::InclusiveSum(nullptr, scan_bytes, numbers, numbers, n_ids), kName);
  return 2 * n_ids + 1 + divided_up(static_cast<int64_t>(std::max(sort_bytes, scan_bytes)), sizeof(uint64_t));
}

int64_t group_ids(const Ids& ids, int64_t first_row, int64_t n_rows, int64_t skipped, const GroupMemory& memory,
                  void* stream) {
  const auto on = static_cast<cudaStream_t>(stream);
  int64_t n_groups = 0;
  if (ids.n == 0) {
    check(cudaMemsetAsync(memory.starts, 0, sizeof(int64_t), on), kName);
    return 0;
  }
  const Teams each(1);
  const Scratch scratch(memory.scratch, ids.n);
  const Packing packing{bits_of(ids.n)};
  Rows table{};
  table.first_row = first_row;
  table.n_rows = n_rows;
  launch(kName, pack_ids, each, ids.n, 1, true, stream, table, ids, skipped, packing, scratch.words);

  cub::DoubleBuffer<uint64_t> words(scratch.words, scratch.others);
  const int end_bit = packing.place_bits + std::max(1, bits_of(n_rows + 1));
  size_t n_bytes = 0;
  check(cub::DeviceRadixSort::SortKeys(nullptr, n_bytes, words, ids.n, packing.place_bits, end_bit, on), kName);
  check(cub::DeviceRadixSort::SortKeys(scratch.temporary, n_bytes, words, ids.n, packing.place_bits, end_bit, on),
        kName);

  uint64_t* numbers = words.Alternate();
  launch(kName, mark_firsts, each, ids.n, 1, true, stream, words.Current(), ids.n, n_rows, packing, numbers);
  check(cub::DeviceScan::InclusiveSum(nullptr, n_bytes, numbers, numbers, ids.n, on), kName);
  check(cub::DeviceScan::InclusiveSum(scratch.temporary, n_bytes, numbers, numbers, ids.n, on), kName);
  launch(kName, write_groups, each, ids.n, 1, true, stream, words.Current(), numbers, ids.n, n_rows, packing, memory,
         scratch.n_groups);
  check(cudaMemcpyAsync(&n_groups, scratch.n_groups, sizeof n_groups, cudaMemcpyDeviceToHost, on), kName);
  check(cudaStreamSynchronize(on), kName);
  return n_groups;
}

}  // namespace shardwise::kernels::cuda
