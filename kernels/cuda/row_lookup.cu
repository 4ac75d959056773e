// kernels/cuda/row_lookup.cu: copies rows word by word, several at a time per thread to hide memory latency.
#include "kernels/cuda/elements.h"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/launch.h"

namespace shardwise::kernels::cuda {
namespace {

constexpr int kRows = 4;  // in flight per thread

/// Widths are in words. Results bypass the caches, so that these keep the tables' rows.
template <class Word>
__global__ void __launch_bounds__(kThreads)
    copy_rows(Rows table, Ids ids, bool keeps, Word* results, int64_t result_step, int64_t width) {
  const int64_t first = int64_t{blockIdx.x} * kRows * blockDim.y + threadIdx.y;
  const Word* from[kRows];
  Word* into[kRows];
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    const int64_t i = first + r * int64_t{blockDim.y};
    from[r] = i < ids.n ? static_cast<const Word*>(row_at(table, id_at(ids, i))) : nullptr;
    into[r] = i < ids.n && (from[r] != nullptr || !keeps) ? results + i * result_step : nullptr;
  }
  for (int64_t c = int64_t{blockIdx.y} * blockDim.x + threadIdx.x; c < width; c += int64_t{gridDim.y} * blockDim.x) {
    Word words[kRows];
#pragma unroll
    for (int r = 0; r < kRows; ++r) words[r] = from[r] == nullptr ? Word{} : __ldg(from[r] + c);
#pragma unroll
    for (int r = 0; r < kRows; ++r)
      if (into[r] != nullptr) __stcs(into[r] + c, words[r]);
  }
}

}  // namespace

void look_up(const Rows& table, const Ids& ids, Miss miss, void* results, int64_t result_step, void* stream) {
  const int64_t bytes = size_of(table.element);
  const auto copy = [&]<class Word>(Word) {
    constexpr int64_t kBytes = sizeof(Word);
    const int64_t width = table.width * bytes / kBytes;
    launch("look_up", copy_rows<Word>, Teams(width), ids.n, kRows, false, stream, table, ids, miss == Miss::kKeep,
           static_cast<Word*>(results), result_step * bytes / kBytes, width);
  };
  switch (std::min(alignment_of_rows(table), alignment_of({results}, {result_step * bytes}))) {
    case 16:
      return copy(uint4{});
    case 8:
      return copy(uint2{});
    case 4:
      return copy(unsigned{});
    default:
      return copy(static_cast<unsigned short>(0));
  }
}

}  // namespace shardwise::kernels::cuda
