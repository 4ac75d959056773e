#include "pictures/grid_segments.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace shardwise::detail {

std::vector<GridSegment> leave_out_middle(const std::vector<Interval>& ranges, int64_t limit) {
  const auto n = static_cast<int64_t>(ranges.size());
  const int64_t n_last = (limit - 1) / 2, n_first = limit - 1 - n_last;
  std::vector<GridSegment> drawn;
  for (int64_t i = 0; i < n; ++i) {
    if (n > limit && i == n_first) {
      drawn.push_back({{ranges[i].begin, ranges[n - n_last - 1].end}, n - n_first - n_last});
      i = n - n_last;
    }
    drawn.push_back({ranges[i]});
  }
  return drawn;
}

Interval segments_within(const std::vector<GridSegment>& segments, Interval range) {
  const auto begins_before = [](const GridSegment& segment, int64_t at) { return segment.range.begin < at; };
  const auto ends_after = [](int64_t at, const GridSegment& segment) { return at < segment.range.end; };
  const auto first = std::lower_bound(segments.begin(), segments.end(), range.begin, begins_before);
  const auto last = std::upper_bound(first, segments.end(), range.end, ends_after);
  return {first - segments.begin(), last - segments.begin()};
}

std::vector<int64_t> extents(const std::vector<GridSegment>& segments, int64_t least, int64_t total) {
  double length = 0;
  for (const GridSegment& segment : segments)
    length += segment.n_left_out > 0 ? 0 : static_cast<double>(segment.range.length());
  std::vector<int64_t> result;
  for (const GridSegment& segment : segments) {
    const double share = segment.n_left_out > 0 ? 0 : static_cast<double>(segment.range.length()) / length;
    result.push_back(std::max(least, static_cast<int64_t>(std::lround(share * static_cast<double>(total)))));
  }
  return result;
}

std::string left_out_note(const std::vector<GridSegment>& segments, const char* name) {
  int64_t n_segments = static_cast<int64_t>(segments.size());
  const GridSegment* gap = nullptr;
  for (const GridSegment& segment : segments) {
    if (segment.n_left_out == 0) continue;
    gap = &segment;
    n_segments += segment.n_left_out - 1;
  }
  if (gap == nullptr) return "";
  return fmt::format("{} [{}, {}) left out: {} of {} segments", name, gap->range.begin, gap->range.end, gap->n_left_out,
                     n_segments);
}

}  // namespace shardwise::detail
