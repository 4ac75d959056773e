// text/rank_names.h: ranks in a few words, and each in its own colour.
#pragma once

#include <c10/util/ArrayRef.h>

#include <string>

namespace shardwise::detail {

/// "0", "0-3", "0,2", "0-3,8-11", "0,8,..,56", "0,1,5,.. (9 ranks)": never longer than a few numbers. `ranks` in any order.
std::string rank_list(c10::IntArrayRef ranks);

/// "rank 0" or "ranks 0-3".
std::string rank_words(c10::IntArrayRef ranks);

/// All of `ranks` as runs: "0-3,8,10-11". In any order.
std::string rank_runs(c10::IntArrayRef ranks);

/// The ANSI sequence that sets the background of `rank`, with dark text on it; ended by kPlain.
std::string background(int64_t rank);
inline constexpr const char* kPlain = "\x1b[0m";
/// That colour as "#afd7ff": light enough for dark text on it, whatever lies around it.
std::string color_of(int64_t rank);

}  // namespace shardwise::detail
