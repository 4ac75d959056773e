// benchmarks/planning.cpp: microseconds of a plan that is known, and of one that is not, with this rank's boxes.
//
//   cmake --build build --target benchmark_planning && build/benchmark_planning
#include "runtime/redistribute/plan_cache.h"
#include "threads/thread_world.h"

#include <fmt/format.h>

#include <chrono>

using namespace shardwise;

namespace {

/// Microseconds per call, the fastest of 20 batches.
template <class Call>
double fastest(int n_calls, const Call& call) {
  double best = 1e9;
  for (int batch = 0; batch < 20; ++batch) {
    const auto begin = std::chrono::steady_clock::now();
    for (int i = 0; i < n_calls; ++i) call(batch * n_calls + i);
    const std::chrono::duration<double, std::micro> passed = std::chrono::steady_clock::now() - begin;
    best = std::min(best, passed.count() / n_calls);
  }
  return best;
}

SpecPtr spec(const MeshPtr& mesh, int64_t n_rows, std::vector<Placement> placements) {
  const Dims sizes{n_rows, 1023};
  return Spec::intern(mesh, sizes, std::move(placements), row_major_strides(sizes), c10::kFloat);
}

}  // namespace

int main() {
  run_ranks(8, [](World& world) {
    std::vector<int64_t> ranks(8);
    for (int64_t rank = 0; rank < 8; ++rank) ranks[rank] = rank;
    const auto mesh = DeviceMesh::create(World::current(), c10::kCPU, {{2, 4}, ranks});
    if (world.rank() != 0) return;
    const Placement rows = Placement::shard(0), columns = Placement::shard(1);
    auto& cache = PlanCache::of_thread();
    const auto from = spec(mesh, 4097, {rows, columns}), to = spec(mesh, 4097, {columns, rows});
    const double hit = fastest(1000, [&](int) { cache.find_or_make(from, to, {}); });
    std::vector<std::pair<SpecPtr, SpecPtr>> moves;  // interned beforehand: a tensor has its spec
    for (int i = 0; i < 1000; ++i)
      moves.emplace_back(spec(mesh, 10 + i, {rows, columns}), spec(mesh, 10 + i, {columns, rows}));
    const double miss = fastest(50, [&](int i) { cache.find_or_make(moves[i].first, moves[i].second, {}); });
    fmt::print("[S0, S1] -> [S1, S0] on 2x4 ranks: known {:.3f} us, new {:.1f} us\n", hit, miss);
  });
}
