#include "kernels/row_sums.h"

#include "kernels/group_sum.h"

namespace shardwise::kernels {

SHARDWISE_KERNEL void sum_groups(const GradRows& grads, const int64_t* order, const int64_t* starts, const int64_t* rows,
                                 void* results, int64_t result_step, int64_t begin, int64_t end) {
  with_element(grads.element, [&]<class T>(T) {
    for_each_sum<T>(grads, order, starts, begin, end, [&](int64_t g, int64_t first, int64_t n, const Sum<T>* sum) {
      const auto row_at = [&](int64_t group) {
        return static_cast<T*>(results) + (rows == nullptr ? group : rows[group]) * result_step;
      };
      if (first == 0 && g + kAhead < end) prefetch_for_write(row_at(g + kAhead), grads.width * int64_t{sizeof(T)});
      T* into = row_at(g) + first;
      for (int64_t c = 0; c < n; ++c) into[c] = static_cast<T>(sum[c]);
    });
  });
}

}  // namespace shardwise::kernels
