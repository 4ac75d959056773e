// benchmarks/flight_recorder.cpp: what it costs that each communication is recorded: a Communication around a Work that is done.
//
//   cmake --build build --target benchmark_flight_recorder && build/benchmark_flight_recorder
//   valgrind --tool=callgrind --toggle-collect='*recorded_calls*' build/benchmark_flight_recorder 1    # instructions of 1,000 calls
//
// Nanoseconds per communication: the fastest and the median of 2,000 batches of 1,000, in turns with the same Work without one. Groups of
// 4 and of 1,024 ranks, whose ranks are compared with those of the last groups.
#include "runtime/comm/collectives.h"
#include "runtime/comm/comm_trace.h"
#include "runtime/comm/communication.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <numeric>
#include <vector>

using namespace shardwise;

namespace {

constexpr int kCalls = 1000;

class DoneWork final : public c10d::Work {
 public:
  bool wait(std::chrono::milliseconds /*timeout*/) override { return true; }
};

using WorkPtr = Communication::WorkPtr;

[[gnu::noinline]] void bare_calls(const WorkPtr& work) {
  for (int i = 0; i < kCalls; ++i) {
    const WorkPtr launched = work;
    launched->wait();
  }
}

[[gnu::noinline]] void recorded_calls(const Group& group, const WorkPtr& work) {
  for (int i = 0; i < kCalls; ++i)
    Communication(group, {.name = "all_reduce",
                          .dtype = at::kFloat,
                          .bytes_sent = 4096,
                          .bytes_received = 4096,
                          .counted_as = "all_reduce"})
        .run([&] { return work; });
}

template <class Calls>
double ns_per_call(const Calls& calls) {
  const auto begin = std::chrono::steady_clock::now();
  calls();
  const std::chrono::duration<double, std::nano> passed = std::chrono::steady_clock::now() - begin;
  return passed.count() / kCalls;
}

}  // namespace

int main(int argc, char** argv) {
  const int n_batches = argc > 1 ? std::atoi(argv[1]) : 2000;
  const WorkPtr work = c10::make_intrusive<DoneWork>();
  const CommScope scope("aten::_scaled_dot_product_attention");
  fmt::print("{:<20}{:>10}{:>10}{:>10}{:>10}\n", "group", "bare min", "recorded", "adds min", "median");
  for (const int64_t n_ranks : {4, 1024}) {
    std::vector<int64_t> ranks(n_ranks);
    std::iota(ranks.begin(), ranks.end(), 0);
    const Group group{nullptr, ranks, 0};
    std::vector<double> bare, recorded;
    for (int i = 0; i < n_batches; ++i) {
      bare.push_back(ns_per_call([&] { bare_calls(work); }));
      recorded.push_back(ns_per_call([&] { recorded_calls(group, work); }));
    }
    std::ranges::sort(bare);
    std::ranges::sort(recorded);
    fmt::print("{:<20}{:>10.1f}{:>10.1f}{:>10.1f}{:>10.1f}\n", fmt::format("{} ranks", n_ranks), bare[0], recorded[0],
               recorded[0] - bare[0], recorded[n_batches / 2] - bare[n_batches / 2]);
  }
}
