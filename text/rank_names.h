// text/rank_names.h: short texts for ranks, and a colour for each rank.
#pragma once

#include <c10/util/ArrayRef.h>

#include <string>

namespace shardwise::detail {

/// "0", "0-3", "0,2", "0-3,8-11", "0,8,..,56", "0,1,5,.. (9 ranks)": at most a few numbers. `ranks` may be in any order.
std::string rank_list(c10::IntArrayRef ranks);

/// "rank 0" or "ranks 0-3".
std::string rank_words(c10::IntArrayRef ranks);

/// All of `ranks` as runs: "0-3,8,10-11". `ranks` may be in any order.
std::string rank_runs(c10::IntArrayRef ranks);

/// The ANSI sequence that sets the background colour of `rank` with dark text on it. kPlain ends it.
std::string background(int64_t rank);
inline constexpr const char* kPlain = "\x1b[0m";
/// The colour of `rank` as "#afd7ff", light enough for dark text.
std::string color_of(int64_t rank);

}  // namespace shardwise::detail
