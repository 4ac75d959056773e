#include "ops/embedding/row_launch.h"

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <atomic>
#include <limits>
#include <mutex>

#ifdef SHARDWISE_HAS_CUDA
#include "kernels/cuda/kernels.h"

#include <c10/core/impl/VirtualGuardImpl.h>
#endif

namespace shardwise::launch {
namespace {

int64_t bytes_of(const kernels::Rows& rows) {
  return std::max<int64_t>(rows.width, 1) * kernels::size_of(rows.element);
}
int64_t bytes_of(const kernels::GradRows& rows) {
  return std::max<int64_t>(rows.width, 1) * kernels::size_of(rows.element);
}
int64_t ids_per_bag(const kernels::Bags& bags) { return 1 + bags.n_ids / std::max<int64_t>(bags.n, 1); }

/// Pre: a device without its own kernels.
void check_on_cpu(c10::Device device) {
  TORCH_CHECK_NOT_IMPLEMENTED(
      device.is_cpu(), "[kernels] the tensors are on ", device,
      ", for which this build of Shardwise has no kernels. Build it where torch knows CUDA and nvcc is "
      "found, or use the CPU.");
}

#ifdef SHARDWISE_HAS_CUDA
namespace cuda = kernels::cuda;

void* stream_of(c10::Device device) {
  return c10::impl::VirtualGuardImpl(device.type()).getStream(device).native_handle();
}

at::Tensor scratch(c10::Device device, int64_t n_bytes) {
  return at::empty({n_bytes}, at::TensorOptions().dtype(at::kByte).device(device));
}

cuda::Groups on_gpu(const Groups& groups) { return {groups.order, groups.starts, groups.n, groups.n_ids}; }

/// Calls `kernel` with memory for sums of `groups`, and the stream.
template <class Kernel>
void with_scratch(c10::Device device, const kernels::GradRows& grads, const Groups& groups, const Kernel& kernel) {
  const at::Tensor memory = scratch(device, cuda::sum_scratch(grads, groups.n_ids));
  kernel(memory.mutable_data_ptr(), stream_of(device));
}

// On a GPU this is all of the function; what follows is the CPU's.
#define SHARDWISE_ON_GPU(device, ...) \
  if ((device).is_cuda()) return __VA_ARGS__
#else
#define SHARDWISE_ON_GPU(device, ...)
#endif

}  // namespace

bool has_kernels(c10::Device device) {
#ifdef SHARDWISE_HAS_CUDA
  if (device.is_cuda()) return true;
#endif
  return device.is_cpu();
}

void share_out(int64_t n, int64_t cost, const std::function<void(int64_t, int64_t)>& part) {
  if (n > 0) at::parallel_for(0, n, std::max<int64_t>(1, (1 << 16) / std::max<int64_t>(cost, 1)), part);
}

void look_up(c10::Device device, const kernels::Rows& table, const kernels::Ids& ids, kernels::Miss miss, void* results,
             int64_t result_step) {
  SHARDWISE_ON_GPU(device, cuda::look_up(table, ids, miss, results, result_step, stream_of(device)));
  check_on_cpu(device);
  share_out(ids.n, bytes_of(table),
            [&](int64_t begin, int64_t end) { kernels::look_up(table, ids, miss, results, result_step, begin, end); });
}

kernels::IdRange range_of(c10::Device device, const kernels::Ids& ids) {
#ifdef SHARDWISE_HAS_CUDA
  if (device.is_cuda()) {
    const at::Tensor range = at::empty({2}, at::TensorOptions().dtype(at::kLong).device(device));
    cuda::range_of(ids, static_cast<kernels::IdRange*>(range.mutable_data_ptr()), stream_of(device));
    const at::Tensor on_cpu = range.cpu();
    return {on_cpu[0].item<int64_t>(), on_cpu[1].item<int64_t>()};
  }
#endif
  check_on_cpu(device);
  std::mutex mutex;
  kernels::IdRange range{std::numeric_limits<int64_t>::max(), std::numeric_limits<int64_t>::min()};
  share_out(ids.n, 8, [&](int64_t begin, int64_t end) {
    const kernels::IdRange part = kernels::range_of(ids, begin, end);
    const std::lock_guard lock(mutex);
    range = {std::min(range.lowest, part.lowest), std::max(range.highest, part.highest)};
  });
  return range;
}

uint64_t digest_of(c10::Device device, const kernels::Ids& ids) {
#ifdef SHARDWISE_HAS_CUDA
  if (device.is_cuda()) {
    const at::Tensor digest = at::empty({1}, at::TensorOptions().dtype(at::kLong).device(device));
    cuda::digest_of(ids, reinterpret_cast<uint64_t*>(digest.mutable_data_ptr<int64_t>()), stream_of(device));
    return static_cast<uint64_t>(digest.item<int64_t>());
  }
#endif
  check_on_cpu(device);
  std::atomic<uint64_t> digest = 0;
  share_out(ids.n, 8, [&](int64_t begin, int64_t end) { digest += kernels::digest_of(ids, begin, end); });
  return digest;
}

int64_t group_scratch(c10::Device device, int64_t n_ids) {
  SHARDWISE_ON_GPU(device, cuda::group_scratch(n_ids));
  check_on_cpu(device);
  return 2 * n_ids;
}

int64_t group_ids(c10::Device device, const kernels::Ids& ids, int64_t first_row, int64_t n_rows, int64_t skipped,
                  const kernels::GroupMemory& memory) {
  SHARDWISE_ON_GPU(device, cuda::group_ids(ids, first_row, n_rows, skipped, memory, stream_of(device)));
  check_on_cpu(device);
  return kernels::group_ids(ids, first_row, n_rows, skipped, memory);
}

void sum_groups(c10::Device device, const kernels::GradRows& grads, const Groups& groups, void* results) {
  SHARDWISE_ON_GPU(device, with_scratch(device, grads, groups, [&](void* memory, void* stream) {
                     cuda::sum_groups(grads, on_gpu(groups), nullptr, results, grads.width, memory, stream);
                   }));
  check_on_cpu(device);
  share_out(groups.n, bytes_of(grads), [&](int64_t begin, int64_t end) {
    kernels::sum_groups(grads, groups.order, groups.starts, results, begin, end);
  });
}

void sum_rows(c10::Device device, const kernels::GradRows& grads, const Groups& groups, void* results, int64_t n_rows) {
  SHARDWISE_ON_GPU(device, with_scratch(device, grads, groups, [&](void* memory, void* stream) {
                     cuda::clear(results, n_rows * bytes_of(grads), stream);
                     cuda::sum_groups(grads, on_gpu(groups), groups.rows, results, grads.width, memory, stream);
                   }));
  check_on_cpu(device);
  share_out(n_rows, bytes_of(grads), [&](int64_t begin, int64_t end) {
    kernels::sum_rows(grads, groups.order, groups.starts, groups.rows, groups.n, results, begin, end);
  });
}

void grad_squares(c10::Device device, const kernels::GradRows& grads, const Groups& groups, double* results) {
  SHARDWISE_ON_GPU(device, with_scratch(device, grads, groups, [&](void* memory, void* stream) {
                     cuda::grad_squares(grads, on_gpu(groups), results, memory, stream);
                   }));
  check_on_cpu(device);
  share_out(groups.n, bytes_of(grads), [&](int64_t begin, int64_t end) {
    kernels::grad_squares(grads, groups.order, groups.starts, results, begin, end);
  });
}

void update_rows(c10::Device device, const kernels::Rows& table, const kernels::RowState& state,
                 const kernels::RowUpdate& update, const kernels::GradRows& grads, const Groups& groups,
                 const double* mean_squares) {
  SHARDWISE_ON_GPU(device, with_scratch(device, grads, groups, [&](void* memory, void* stream) {
                     cuda::update_rows(table, state, update, grads, on_gpu(groups), groups.rows, mean_squares, memory,
                                       stream);
                   }));
  check_on_cpu(device);
  share_out(groups.n, 4 * bytes_of(grads), [&](int64_t begin, int64_t end) {
    kernels::update_rows(table, state, update, grads, groups.order, groups.starts, groups.rows, mean_squares, begin,
                         end);
  });
}

void pool(c10::Device device, const kernels::Rows& table, const kernels::Ids& ids, const kernels::Bags& bags,
          kernels::Pooling pooling, double none, void* results, int64_t* chosen) {
  SHARDWISE_ON_GPU(device, cuda::pool(table, ids, bags, pooling, none, results, chosen, stream_of(device)));
  check_on_cpu(device);
  share_out(bags.n, bytes_of(table) * ids_per_bag(bags), [&](int64_t begin, int64_t end) {
    kernels::pool(table, ids, bags, pooling, none, results, chosen, begin, end);
  });
}

void spread_bags(c10::Device device, const kernels::Bags& bags, const kernels::Ids& ids, kernels::Pooling pooling,
                 kernels::Element element, int64_t* bag_of, void* factors) {
  SHARDWISE_ON_GPU(device, cuda::spread_bags(bags, ids, pooling, element, bag_of, factors, stream_of(device)));
  check_on_cpu(device);
  share_out(bags.n, 16 * ids_per_bag(bags), [&](int64_t begin, int64_t end) {
    kernels::spread_bags(bags, ids, pooling, element, bag_of, factors, begin, end);
  });
}

void dot_rows(c10::Device device, const kernels::Rows& table, const kernels::Ids& ids, int64_t padding,
              const kernels::GradRows& grads, void* results) {
  SHARDWISE_ON_GPU(device, cuda::dot_rows(table, ids, padding, grads, results, stream_of(device)));
  check_on_cpu(device);
  share_out(ids.n, bytes_of(table),
            [&](int64_t begin, int64_t end) { kernels::dot_rows(table, ids, padding, grads, results, begin, end); });
}

void row_powers(c10::Device device, const kernels::Rows& table, const int64_t* rows, int64_t n, double p,
                double* results) {
  SHARDWISE_ON_GPU(device, cuda::row_powers(table, rows, n, p, results, stream_of(device)));
  check_on_cpu(device);
  share_out(n, bytes_of(table),
            [&](int64_t begin, int64_t end) { kernels::row_powers(table, rows, p, results, begin, end); });
}

void shorten_rows(c10::Device device, const kernels::Rows& table, const int64_t* rows, int64_t n, double p,
                  double max_norm, const double* powers) {
  SHARDWISE_ON_GPU(device, cuda::shorten_rows(table, rows, n, p, max_norm, powers, stream_of(device)));
  check_on_cpu(device);
  share_out(n, bytes_of(table),
            [&](int64_t begin, int64_t end) { kernels::shorten_rows(table, rows, p, max_norm, powers, begin, end); });
}

}  // namespace shardwise::launch
