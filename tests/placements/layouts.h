// tests/placements/layouts.h: short spellings of grids, layouts and what they say, for the tests of placements/.
#pragma once

#include "placements/layout.h"

#include <c10/util/Exception.h>
#include <gtest/gtest.h>

#include <numeric>

namespace shardwise {

/// A grid of ranks 0, 1, ... in order.
inline std::shared_ptr<const RankGrid> grid(Dims shape) {
  std::vector<int64_t> ranks(Box::whole(shape).numel());
  std::iota(ranks.begin(), ranks.end(), 0);
  return std::make_shared<const RankGrid>(RankGrid{std::move(shape), std::move(ranks)});
}

inline std::shared_ptr<const RankGrid> grid(Dims shape, std::vector<int64_t> ranks) {
  return std::make_shared<const RankGrid>(RankGrid{std::move(shape), std::move(ranks)});
}

/// "0[0:3] 1[3:4]": the boxes of the ranks, in the order of the grid.
inline std::string holdings(const Layout& layout) {
  std::string text;
  for (const int64_t rank : layout.grid().ranks) {
    for (const Box& box : layout.boxes(rank)) text += (text.empty() ? "" : " ") + std::to_string(rank) + to_string(box);
  }
  return text;
}

inline std::string words(const std::vector<OwnedBox>& owned) {
  std::string text;
  for (const auto& [rank, box] : owned) text += (text.empty() ? "" : " ") + std::to_string(rank) + to_string(box);
  return text;
}

/// The message of the `Error` that `call` throws; fails the test where it throws nothing or another error.
template <class Error, class Call>
std::string message_of(const Call& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what_without_backtrace();
  } catch (const std::exception& error) {
    ADD_FAILURE() << "another error: " << error.what();
    return "";
  }
  ADD_FAILURE() << "no error";
  return "";
}

inline void expect_words(const std::string& text, const std::vector<std::string>& key_words) {
  for (const std::string& word : key_words)
    EXPECT_NE(text.find(word), std::string::npos) << word << "\n  not in: " << text;
}

}  // namespace shardwise
