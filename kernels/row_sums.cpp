#include "kernels/row_sums.h"

#include "kernels/group_sum.h"

namespace shardwise::kernels {
namespace {

/// Sums the groups [begin, end) and stores each at `row_at(group)`.
template <class T, class RowAt>
void store_sums(const GradRows& grads, const Groups& groups, int64_t begin, int64_t end, const RowAt& row_at) {
  for (int64_t g = begin; g < end; ++g)
    for_each_block_of_group<T>(grads, groups, g, end,
                               [&](int64_t first, const auto& block) { block.store(row_at(g) + first); });
}

}  // namespace

SHARDWISE_KERNEL void sum_groups(const GradRows& grads, const Groups& groups, void* results, int64_t begin,
                                 int64_t end) {
  with_element(grads.element, [&]<class T>(T) {
    store_sums<T>(grads, groups, begin, end, [&](int64_t g) { return static_cast<T*>(results) + g * grads.width; });
  });
}

SHARDWISE_KERNEL void sum_rows(const GradRows& grads, const Groups& groups, const int64_t* rows, void* results,
                               int64_t first_row, int64_t end_row) {
  const int64_t begin = std::lower_bound(rows, rows + groups.n, first_row) - rows;
  const int64_t end = std::lower_bound(rows + begin, rows + groups.n, end_row) - rows;
  with_element(grads.element, [&]<class T>(T) {
    const auto at = [&](int64_t row) { return static_cast<T*>(results) + row * grads.width; };
    int64_t next = first_row;
    for (int64_t g = begin; g <= end; ++g) {
      const int64_t row = g < end ? rows[g] : end_row;
      if (next < row)
        std::memset(static_cast<void*>(at(next)), 0, static_cast<size_t>((row - next) * grads.width) * sizeof(T));
      next = row + 1;
    }
    store_sums<T>(grads, groups, begin, end, [&](int64_t g) { return at(rows[g]); });
  });
}

}  // namespace shardwise::kernels
