#include "kernels/row_lookup.h"

#include "kernels/elements.h"

namespace shardwise::kernels {
namespace {

template <class Id, class Width>
void copy_rows(const Rows& table, const Id* ids, int64_t n_ids, Miss miss, char* results, int64_t result_bytes,
               int64_t begin, int64_t end, Width row_bytes) {
  const auto* rows = static_cast<const char*>(table.data);
  const int64_t step = table.step * size_of(table.element);
  const auto n_rows = static_cast<uint64_t>(table.n_rows);
  const auto row_of = [&](int64_t i) { return offset_of(ids[i], table.first_row); };
  for (int64_t i = begin; i < end; ++i) {
    if (i + kAhead < n_ids)
      if (const uint64_t later = row_of(i + kAhead); later < n_rows)
        prefetch(rows + static_cast<int64_t>(later) * step, row_bytes);
    char* into = results + i * result_bytes;
    if (const uint64_t row = row_of(i); row < n_rows)
      std::memcpy(into, rows + static_cast<int64_t>(row) * step, static_cast<size_t>(row_bytes));
    else if (miss == Miss::kZero)
      std::memset(into, 0, static_cast<size_t>(row_bytes));
  }
}

template <int64_t kBytes>
using Fixed = std::integral_constant<int64_t, kBytes>;

}  // namespace

SHARDWISE_KERNEL void look_up(const Rows& table, const Ids& ids, Miss miss, void* results, int64_t result_step,
                              int64_t begin, int64_t end) {
  const int64_t row_bytes = table.width * size_of(table.element);
  const int64_t result_bytes = result_step * size_of(table.element);
  auto* into = static_cast<char*>(results);
  with_ids(ids, [&](const auto* id) {
    const auto copy = [&](auto width) { copy_rows(table, id, ids.n, miss, into, result_bytes, begin, end, width); };
    // Copies of a compile-time length are a few moves instead of a call.
    if (row_bytes == 256)
      copy(Fixed<256>{});
    else if (row_bytes == 128)
      copy(Fixed<128>{});
    else
      copy(row_bytes);
  });
}

}  // namespace shardwise::kernels
