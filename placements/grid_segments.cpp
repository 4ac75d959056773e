#include "placements/grid_segments.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>

namespace shardwise::detail {

std::vector<Band> bands_between(const std::vector<Interval>& ranges) {
  std::set<int64_t> cuts;
  for (const Interval range : ranges) {
    if (range.length() > 0) cuts.insert({range.begin, range.end});
  }
  std::vector<Band> bands;
  for (auto end = cuts.begin(); end != cuts.end(); ++end) {
    if (end != cuts.begin()) bands.push_back({{*std::prev(end), *end}});
  }
  return bands;
}

std::vector<Band> leave_out_middle(const std::vector<Band>& bands, int64_t limit) {
  const auto n = static_cast<int64_t>(bands.size());
  if (n <= limit) return bands;
  const int64_t n_last = (limit - 1) / 2, n_first = limit - 1 - n_last;
  std::vector<Band> drawn(bands.begin(), bands.begin() + n_first);
  drawn.push_back({{bands[n_first].range.begin, bands[n - n_last - 1].range.end}, n - n_first - n_last});
  drawn.insert(drawn.end(), bands.end() - n_last, bands.end());
  return drawn;
}

Interval bands_within(const std::vector<Band>& bands, Interval range) {
  const auto begins_before = [](const Band& band, int64_t at) { return band.range.begin < at; };
  const auto ends_after = [](int64_t at, const Band& band) { return at < band.range.end; };
  const auto first = std::lower_bound(bands.begin(), bands.end(), range.begin, begins_before);
  const auto last = std::upper_bound(first, bands.end(), range.end, ends_after);
  return {first - bands.begin(), last - bands.begin()};
}

std::vector<int64_t> extents(const std::vector<Band>& bands, int64_t least, int64_t total) {
  double length = 0;
  for (const Band& band : bands) length += band.n_left_out > 0 ? 0 : static_cast<double>(band.range.length());
  std::vector<int64_t> result;
  for (const Band& band : bands) {
    const double share = band.n_left_out > 0 ? 0 : static_cast<double>(band.range.length()) / length;
    result.push_back(std::max(least, static_cast<int64_t>(std::lround(share * static_cast<double>(total)))));
  }
  return result;
}

std::string left_out_note(const std::vector<Band>& bands, const char* name) {
  int64_t n_bands = static_cast<int64_t>(bands.size());
  const Band* gap = nullptr;
  for (const Band& band : bands) {
    if (band.n_left_out == 0) continue;
    gap = &band;
    n_bands += band.n_left_out - 1;
  }
  if (gap == nullptr) return "";
  return fmt::format("{} [{}, {}) left out: {} of {} bands", name, gap->range.begin, gap->range.end, gap->n_left_out,
                     n_bands);
}

}  // namespace shardwise::detail
