// tests/support/ranks.h: ranks as threads, for tests.
//
//   run_ranks(3, [](World& world) { EXPECT_...; });        // throws what the first failing rank threw
//   const auto sums = on_each_rank(3, [](World& world) { return world.rank() * 2; });   // {0, 2, 4}
//   expect_error("rank 2 has finished", error_of_ranks(3, body));
#pragma once

#include "threads/thread_world.h"

#include <c10/util/Exception.h>
#include <gtest/gtest.h>

#include <numeric>
#include <string>
#include <type_traits>
#include <vector>

namespace shardwise {

/// The group of all ranks.
inline GroupPtr everyone(World& world) {
  std::vector<int64_t> ranks(world.size());
  std::iota(ranks.begin(), ranks.end(), 0);
  return world.group(ranks);
}

/// What `body(World&)` returned, by rank. Never of bool: vector<bool> elements share bytes between threads.
template <class Body>
auto on_each_rank(int64_t n_ranks, const Body& body) {
  using Value = std::invoke_result_t<Body, World&>;
  static_assert(!std::is_same_v<Value, bool>, "return an int64_t");
  std::vector<Value> values(n_ranks);
  run_ranks(n_ranks, [&](World& world) { values[world.rank()] = body(world); });
  return values;
}

/// The text with which `run_ranks` fails, without its "rank N: "; "" where it succeeds.
template <class Body>
std::string error_of_ranks(int64_t n_ranks, const Body& body,
                           std::chrono::milliseconds timeout = std::chrono::seconds(60)) {
  try {
    run_ranks(n_ranks, body, timeout);
  } catch (const c10::Error& error) {
    const std::string text = error.what_without_backtrace();
    return text.substr(text.find(": ") + 2);
  }
  return {};
}

inline void expect_error(const std::string& words, const std::string& error) {
  EXPECT_PRED_FORMAT2(testing::IsSubstring, words, error);
}

}  // namespace shardwise
