// kernels/group_sum.h: sums of the gradients of one group, column by column. Only for sources of this folder.
#pragma once

#include "kernels/column_blocks.h"
#include "kernels/id_groups.h"

#include <algorithm>

namespace shardwise::kernels {

/// Calls `add(columns, factor)` for each gradient of a group. `columns` points to column `first` of the gradient.
template <class T, class Add>
void for_each_grad(const GradRows& grads, const int64_t* order, int64_t n_ids, int64_t first, const Add& add) {
  const auto* data = static_cast<const T*>(grads.data) + first;
  const auto* factors = static_cast<const Sum<T>*>(grads.factors);
  const auto* row_of = grads.row_of;
  const int64_t step = grads.step;
  for (int64_t k = 0; k < n_ids; ++k) {
    const int64_t id = order[k], row = row_of == nullptr ? id : row_of[id];
    if (factors == nullptr)
      add(data + row * step);
    else
      add(data + row * step, factors[id]);
  }
}

/// For maxima: calls `use(first, block)` with the sums of a group's gradients, counting only columns whose maximum came from the group's
/// ids.
template <class T, class Use>
void sum_chosen(const GradRows& grads, const int64_t* order, int64_t n_ids, const Use& use) {
  constexpr int64_t kColumns = 64;
  const auto* data = static_cast<const T*>(grads.data);
  const auto* factors = static_cast<const Sum<T>*>(grads.factors);
  for (int64_t first = 0; first < grads.width; first += kColumns) {
    LooseColumnBlock<T, kColumns> block(std::min(kColumns, grads.width - first));
    for (int64_t k = 0; k < n_ids; ++k) {
      const int64_t id = order[k], row = grads.row_of == nullptr ? id : grads.row_of[id];
      block.add_chosen(data + row * grads.step + first, factors == nullptr ? 1 : factors[id],
                       grads.chosen + row * grads.width + first, id);
    }
    use(first, block);
  }
}

/// Prefetches the gradient row of `order[k]`.
template <class T>
void prefetch_grad(const GradRows& grads, const int64_t* order, int64_t k) {
  const int64_t row = grads.row_of == nullptr ? order[k] : grads.row_of[order[k]];
  prefetch(static_cast<const T*>(grads.data) + row * grads.step, grads.width * static_cast<int64_t>(sizeof(T)));
}

/// Calls `use(first, block)` for the group g, block after block, with the sums of columns [first, first + block.n). Prefetches gradients of
/// the groups up to `end`.
template <class T, class Use>
void for_each_block_of_group(const GradRows& grads, const Groups& groups, int64_t g, int64_t end, const Use& use) {
  const auto [order, starts, n_groups, n_all] = groups;
  const int64_t n_ids = starts[g + 1] - starts[g], n_bytes = grads.width * int64_t{sizeof(T)};
  const int64_t ahead = rows_ahead(n_bytes);
  const int64_t n_places = n_bytes <= 128 ? 0 : starts[end];  // the processor itself looks far enough ahead
  const int64_t* ids = order + starts[g];
  for (int64_t k = starts[g] + ahead; k < std::min(starts[g + 1] + ahead, n_places); ++k)
    prefetch_grad<T>(grads, order, k);
  if (grads.chosen != nullptr) return sum_chosen<T>(grads, ids, n_ids, use);
  for_each_column_block<T>(grads.width, [&](int64_t first, auto& block) {
    for_each_grad<T>(grads, ids, n_ids, first, [&](auto... grad) { block.add(grad...); });
    use(first, block);
  });
}

}  // namespace shardwise::kernels
