// benchmarks/flight_recorder.cpp: what it costs that each communication is recorded.
//
//   cmake --build build --target benchmark_flight_recorder && build/benchmark_flight_recorder
//   valgrind --tool=callgrind --toggle-collect='*recorded_calls*' build/benchmark_flight_recorder 1    # instructions of 1,000 calls
//
// Nanoseconds, the fastest and the median of 2,000 batches of 1,000 in turns: "records" is what the flight recorder does for one
// communication; "adds" is what all of a Communication adds to a Work that is done: beside the records the questions whether somebody counts, profiles or
// compares, and the interpreter's lock. Groups of 4 and of 1,024 ranks.
#include "runtime/comm/collectives.h"
#include "runtime/comm/comm_scope.h"
#include "runtime/comm/communication.h"

#include <fmt/format.h>

#include <c10/util/ApproximateClock.h>

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

[[gnu::noinline]] void records_alone(FlightRecorder& recorder, const Group& group) {
  for (int i = 0; i < kCalls; ++i) {
    const auto begun = recorder.begin(
        comm_thread(), group, {.name = "all_reduce", .dtype = at::kFloat, .bytes_sent = 4096, .bytes_received = 4096});
    FlightRecorder::set_waiting(begun, begun.begin);
    FlightRecorder::set_ended(begun, c10::getApproximateTime(), /*is_done=*/true);
  }
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
  fmt::print("{:<12}{:>14}{:>8}{:>12}{:>8}\n", "group", "records, min", "median", "adds, min", "median");
  for (const int64_t n_ranks : {4, 1024}) {
    std::vector<int64_t> ranks(n_ranks);
    std::iota(ranks.begin(), ranks.end(), 0);
    const Group group{nullptr, ranks, 0};
    FlightRecorder& recorder = FlightRecorder::of_thread(0);
    std::vector<double> records, bare, whole;
    for (int i = 0; i < n_batches; ++i) {
      records.push_back(ns_per_call([&] { records_alone(recorder, group); }));
      bare.push_back(ns_per_call([&] { bare_calls(work); }));
      whole.push_back(ns_per_call([&] { recorded_calls(group, work); }));
    }
    for (auto* const times : {&records, &bare, &whole}) std::ranges::sort(*times);
    const int middle = n_batches / 2;
    fmt::print("{:<12}{:>14.1f}{:>8.1f}{:>12.1f}{:>8.1f}\n", fmt::format("{} ranks", n_ranks), records[0],
               records[middle], whole[0] - bare[0], whole[middle] - bare[middle]);
  }
}
