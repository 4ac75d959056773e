// benchmarks/dispatch.cpp: what an operator on a distributed tensor adds to the plain one's time in a C++ program.
//
//   cmake --build build --target benchmark_dispatch && OMP_NUM_THREADS=1 build/benchmark_dispatch
//
// One rank, one thread, [4, 4] floats; microseconds per call, the fastest of 200 batches on each side, in turns.
#include "runtime/api/dtensor.h"
#include "runtime/dispatch/decision.h"
#include "threads/thread_world.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <functional>

using namespace shardwise;

namespace {

constexpr int kBatches = 200;
constexpr int kCalls = 100;

using Call = std::function<at::Tensor(const at::Tensor&, const at::Tensor&)>;

double batch(const Call& call, const at::Tensor& a, const at::Tensor& b) {
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < kCalls; ++i) call(a, b);
  const std::chrono::duration<double, std::micro> passed = std::chrono::steady_clock::now() - begin;
  return passed.count() / kCalls;
}

}  // namespace

int main() {
  run_ranks(1, [](World&) {
    const at::NoGradGuard no_grad;
    const auto mesh = DeviceMesh::create(World::current(), c10::kCPU, {{1}, {0}});
    const at::Tensor a = at::rand({4, 4}), b = at::rand({4, 4});
    const at::Tensor da = distribute_tensor(a, mesh, {Placement::shard(0)});
    const at::Tensor db = distribute_tensor(b, mesh, {Placement::shard(0)});
    const std::pair<const char*, Call> rows[] = {
        {"add", [](const at::Tensor& x, const at::Tensor& y) { return at::add(x, y); }},
        {"mul by scalar", [](const at::Tensor& x, const at::Tensor&) { return at::mul(x, 2.0); }},
        {"relu", [](const at::Tensor& x, const at::Tensor&) { return at::relu(x); }},
        {"in-place add", [](const at::Tensor& x, const at::Tensor& y) { return x.add_(y, 1e-9); }},
        {"transpose", [](const at::Tensor& x, const at::Tensor&) { return x.transpose(0, 1); }},
        {"cat", [](const at::Tensor& x, const at::Tensor& y) { return at::cat({x, y}, 1); }},
    };
    fmt::print("{:<16}{:>8}{:>12}{:>8}\n", "row", "plain", "shardwise", "adds");
    for (const auto& [name, call] : rows) {
      double plain = 1e9, ours = 1e9;
      for (int i = 0; i < kBatches; ++i) {
        plain = std::min(plain, batch(call, a, b));
        ours = std::min(ours, batch(call, da, db));
      }
      fmt::print("{:<16}{:>8.2f}{:>12.2f}{:>8.2f}\n", name, plain, ours, ours - plain);
    }
    const CacheCounters counters = DecisionCache::of_thread().counters();
    fmt::print("decisions: {} hits, {} misses, {} kept\n", counters.hits, counters.misses, counters.size);
  });
}
