#include "text/rank_names.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <vector>

namespace shardwise::detail {
namespace {

constexpr size_t kMaxRuns = 3;
constexpr size_t kMoreRuns = 5;  // more runs are listed if this is no longer than giving the number of ranks

// Light tones of the 256-colour cube, in an order where adjacent ones differ in hue.
constexpr std::array<int, 16> kTones = {153, 216, 151, 222, 183, 159, 210, 193, 147, 223, 116, 218, 187, 111, 180, 157};

struct Run {
  int64_t first, last;
};

std::vector<Run> runs_of(const std::vector<int64_t>& sorted) {
  std::vector<Run> runs;
  for (const int64_t rank : sorted) {
    if (!runs.empty() && runs.back().last + 1 == rank) {
      runs.back().last = rank;
    } else {
      runs.push_back({rank, rank});
    }
  }
  return runs;
}

bool evenly_spaced(const std::vector<int64_t>& sorted) {
  const auto differs = [&](int64_t a, int64_t b) { return b - a != sorted[1] - sorted[0]; };
  return std::adjacent_find(sorted.begin(), sorted.end(), differs) == sorted.end();
}

std::string joined(const std::vector<std::string>& words) { return fmt::format("{}", fmt::join(words, ",")); }

std::string to_string(const Run& run) {
  if (run.first == run.last) return fmt::format("{}", run.first);
  return fmt::format("{}{}{}", run.first, run.last == run.first + 1 ? "," : "-", run.last);
}

}  // namespace

std::string rank_list(c10::IntArrayRef ranks) {
  std::vector<int64_t> sorted = ranks.vec();
  std::sort(sorted.begin(), sorted.end());
  const auto runs = runs_of(sorted);
  if (runs.size() > kMaxRuns && evenly_spaced(sorted))
    return fmt::format("{},{},..,{}", sorted[0], sorted[1], sorted.back());
  std::vector<std::string> words;
  for (size_t i = 0; i < std::min(runs.size(), kMaxRuns + kMoreRuns); ++i) words.push_back(to_string(runs[i]));
  const std::string all = joined(words);
  if (runs.size() <= kMaxRuns) return all;
  words.resize(kMaxRuns);
  const std::string brief = joined(words) + fmt::format(",.. ({} ranks)", sorted.size());
  return runs.size() <= kMaxRuns + kMoreRuns && all.size() <= brief.size() ? all : brief;
}

std::string rank_words(c10::IntArrayRef ranks) { return (ranks.size() == 1 ? "rank " : "ranks ") + rank_list(ranks); }

std::string background(int64_t rank) { return fmt::format("\x1b[38;5;16;48;5;{}m", kTones[rank % kTones.size()]); }

std::string rank_runs(c10::IntArrayRef ranks) {
  std::vector<int64_t> sorted = ranks.vec();
  std::sort(sorted.begin(), sorted.end());
  std::vector<std::string> words;
  for (const Run& run : runs_of(sorted))
    words.push_back(run.first == run.last ? fmt::format("{}", run.first) : fmt::format("{}-{}", run.first, run.last));
  return joined(words);
}

std::string color_of(int64_t rank) {
  constexpr std::array kLevels = {0x00, 0x5f, 0x87,
                                  0xaf, 0xd7, 0xff};  // of each primary in the cube, which begins at 16
  const int place = kTones[rank % kTones.size()] - 16;
  return fmt::format("#{:02x}{:02x}{:02x}", kLevels[place / 36], kLevels[place / 6 % 6], kLevels[place % 6]);
}

}  // namespace shardwise::detail
