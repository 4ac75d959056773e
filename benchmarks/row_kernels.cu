// benchmarks/row_kernels.cu: bytes per second of the row kernels on a GPU, and what share of a copy's that is.
//
//   cmake --build build --target benchmark_row_kernels && build/benchmark_row_kernels
//
// 2,000,000 rows, 1,000,000 ids in bags of 20. Bytes are those that must move: rows read and results written, each once per id; of
// backward, gradients read and rows written, each once per row named. Where ids repeat (Zipf), caches may serve more than memory could.
#include "kernels/cuda/kernels.h"

#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <vector>

using namespace shardwise::kernels;

namespace {

constexpr int64_t kRows = 2'000'000, kIds = 1'000'000, kBag = 20, kBags = kIds / kBag;

void check(cudaError_t code) {
  if (code == cudaSuccess) return;
  std::printf("%s\n", cudaGetErrorString(code));
  std::exit(1);
}

template <class T>
struct Array {
  T* data = nullptr;

  explicit Array(int64_t n) {
    check(cudaMalloc(reinterpret_cast<void**>(&data), static_cast<size_t>(n) * sizeof(T)));
    check(cudaMemset(data, 0, static_cast<size_t>(n) * sizeof(T)));
  }
  explicit Array(const std::vector<T>& values) : Array(static_cast<int64_t>(values.size())) {
    check(cudaMemcpy(data, values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice));
  }
  Array(const Array&) = delete;
  ~Array() { cudaFree(data); }
};

/// Seconds of a call, the median of 20.
template <class Call>
double seconds(const Call& call) {
  cudaEvent_t begin, end;
  check(cudaEventCreate(&begin));
  check(cudaEventCreate(&end));
  std::vector<float> times(20);
  for (int i = -3; i < static_cast<int>(times.size()); ++i) {
    check(cudaEventRecord(begin));
    call();
    check(cudaEventRecord(end));
    check(cudaEventSynchronize(end));
    if (i >= 0) check(cudaEventElapsedTime(&times[i], begin, end));
  }
  check(cudaEventDestroy(begin));
  check(cudaEventDestroy(end));
  std::nth_element(times.begin(), times.begin() + 10, times.end());
  return times[10] / 1e3;
}

/// Ids of uniform draws, or of Zipf's law by the inverse of its integral; shuffled so that no row's place tells how often it is named.
std::vector<int64_t> draw_ids(double zipf) {
  std::mt19937_64 bits(1);
  std::vector<int64_t> ids(kIds);
  for (int64_t& id : ids) {
    const double u = std::uniform_real_distribution<>(0, 1)(bits), tail = 1 - zipf;
    const double rank = zipf == 0 ? u * kRows : std::pow(1 + u * (std::pow(kRows + 1.0, tail) - 1), 1 / tail) - 1;
    id = std::min(kRows - 1, static_cast<int64_t>(rank)) * 7919 % kRows;
  }
  return ids;
}

std::vector<int64_t> bags_of_ids() {
  std::vector<int64_t> bags(kIds);
  for (int64_t k = 0; k < kIds; ++k) bags[k] = k / kBag;
  return bags;
}

void report(const char* name, double time, double n_bytes, double copy_rate) {
  std::printf("  %-22s %8.3f ms  %7.0f GB/s  %4.0f %% of a copy's\n", name, time * 1e3, n_bytes / time / 1e9,
              100 * n_bytes / time / copy_rate);
}

void measure(Element element, const char* element_name, int64_t width, double zipf) {
  const int64_t row_bytes = width * size_of(element);
  const Array<char> table(kRows * row_bytes), results(kIds * row_bytes), grads(kIds * row_bytes);
  const Array<int64_t> ids(draw_ids(zipf)), rows(kIds), starts(kIds + 1), order(kIds), bag_of(bags_of_ids());
  const Array<uint64_t> group_scratch(cuda::group_scratch(kIds));
  const GradRows per_id{grads.data, element, width, width, nullptr, nullptr, nullptr};
  const GradRows per_bag{grads.data, element, width, width, bag_of.data, nullptr, nullptr};
  const Array<char> scratch(cuda::sum_scratch(per_id, kIds)), state(kRows * 8);
  std::vector<int64_t> begins(kBags);
  for (int64_t bag = 0; bag < kBags; ++bag) begins[bag] = bag * kBag;
  const Array<int64_t> offsets(begins);
  const Rows piece{table.data, element, 0, kRows, width, width};
  const Ids wanted{ids.data, false, kIds};
  const Bags bags{offsets.data, kBags, kIds, -1, nullptr};
  const GroupMemory memory{rows.data, starts.data, order.data, nullptr, group_scratch.data};
  int64_t n_groups = 0;
  const double grouping = seconds([&] { n_groups = cuda::group_ids(wanted, 0, kRows, -1, memory, nullptr); });
  const Groups groups{order.data, starts.data, n_groups, kIds};

  const auto n = static_cast<double>(kIds), n_named = static_cast<double>(n_groups),
             bytes = static_cast<double>(row_bytes);
  const double copy_rate = 2 * n * bytes / seconds([&] {
                             check(cudaMemcpyAsync(results.data, grads.data, static_cast<size_t>(kIds * row_bytes),
                                                   cudaMemcpyDeviceToDevice));
                           });
  std::printf("%s, width %lld, %s ids, %lld of %lld rows named; a copy: %.0f GB/s\n", element_name,
              static_cast<long long>(width), zipf == 0 ? "uniform" : "Zipf(1.05)", static_cast<long long>(n_groups),
              static_cast<long long>(kRows), copy_rate / 1e9);
  const auto time = [&](const char* name, double n_bytes, const auto& call) {
    report(name, seconds(call), n_bytes, copy_rate);
  };
  std::printf("  %-22s %8.3f ms\n", "group_ids", grouping * 1e3);
  time("look_up", 2 * n * bytes, [&] { cuda::look_up(piece, wanted, Miss::kZero, results.data, width, nullptr); });
  time("pool", (n + kBags) * bytes,
       [&] { cuda::pool(piece, wanted, bags, Pooling::kSum, results.data, nullptr, nullptr); });
  time("sum_groups", (n + n_named) * bytes,
       [&] { cuda::sum_groups(per_id, groups, results.data, scratch.data, nullptr); });
  time("sum_groups of bags", (n + n_named) * bytes,
       [&] { cuda::sum_groups(per_bag, groups, results.data, scratch.data, nullptr); });
  using Method = RowUpdate::Method;
  for (const Method method : {Method::kSgd, Method::kRowWiseAdagrad})
    time(method == Method::kSgd ? "update_rows SGD" : "update_rows row-wise", (n + 2 * n_named) * bytes, [&] {
      const UpdatedPiece updated{
          piece, {method == Method::kSgd ? nullptr : state.data, nullptr}, {method, 0.01, 1e-8, 0, 0}};
      cuda::update_rows({&updated, 1}, per_id, groups, rows.data, {}, scratch.data, nullptr);
    });
}

}  // namespace

int main() {
  int n_devices = 0;
  if (cudaGetDeviceCount(&n_devices) != cudaSuccess || n_devices == 0) {
    std::puts("no CUDA device");
    return 77;
  }
  cudaDeviceProp device;
  check(cudaGetDeviceProperties(&device, 0));
  std::printf("%s\n", device.name);
  for (const double zipf : {0.0, 1.05})
    for (const int64_t width : {64, 128, 256}) {
      measure(Element::kFloat, "float", width, zipf);
      measure(Element::kHalf, "half", width, zipf);
    }
  check(cudaDeviceSynchronize());
}
