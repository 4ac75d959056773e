// kernels/cuda/row_sums.cu: sums of groups, written to rows.
#include "kernels/cuda/group_sum.h"

namespace shardwise::kernels::cuda {
namespace {

template <class T>
struct WrittenRows {
  T* results;
  const int64_t* rows;
  int64_t step;

  __device__ void prefetch(int64_t) const {}
  template <int kN>
  __device__ void take(int64_t group, int64_t, int64_t column, bool is_in_row, const Sum<T> (&sum)[kN]) const {
    if (is_in_row) store_sums(results + (rows == nullptr ? group : rows[group]) * step + column, sum);
  }
  __device__ void end(int64_t) const {}
};

}  // namespace

int64_t sum_scratch(const GradRows& grads, int64_t n_ids) {
  const int64_t n_parts = 2 * stretches(n_ids), sum_bytes = grads.element == Element::kDouble ? 8 : 4;
  return divided_up(n_parts * grads.width * sum_bytes, 16) * 16 + 3 * n_ids * 8;
}

void sum_groups(const GradRows& grads, const Groups& groups, void* results, void* scratch, void* stream) {
  sum_rows(grads, groups, nullptr, results, scratch, stream);
}

void sum_rows(const GradRows& grads, const Groups& groups, const int64_t* rows, void* results, void* scratch,
              void* stream) {
  const int64_t bytes = size_of(grads.element);
  const int64_t alignment = alignment_of({grads.data, results, scratch}, {grads.step * bytes, grads.width * bytes});
  with_packs(grads.element, alignment, [&]<class T, int kN>(T, Columns<kN>) {
    for_each_sum<T, kN>("sum_groups", grads, groups, false, scratch, stream,
                        WrittenRows<T>{static_cast<T*>(results), rows, grads.width});
  });
}

}  // namespace shardwise::kernels::cuda
