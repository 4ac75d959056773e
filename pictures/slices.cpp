#include "pictures/slices.h"

#include "pictures/grid_segments.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

namespace shardwise::detail {
namespace {

constexpr int64_t kFewestRanges = 4;  // of a dim that are always used

using CellNumbers = std::vector<size_t>;

/// The intervals between all begins and ends of `ranges`.
std::vector<Interval> intervals_between(const std::vector<Interval>& ranges) {
  std::set<int64_t> lines;
  for (const Interval& range : ranges) lines.insert({range.begin, range.end});
  std::vector<Interval> segments;
  for (auto end = lines.begin(); end != lines.end(); ++end)
    if (end != lines.begin()) segments.push_back({*std::prev(end), *end});
  return segments;
}

/// Extends `a` by `b` if they differ in one dim only and are adjacent there; returns false otherwise.
bool unite(Box& a, const Box& b) {
  int64_t differing = -1;
  for (size_t dim = 0; dim < a.sizes.size(); ++dim) {
    if (a.interval(dim) == b.interval(dim)) continue;
    if (differing >= 0) return false;
    differing = static_cast<int64_t>(dim);
  }
  if (differing < 0 || a.interval(differing).end != b.interval(differing).begin) return false;
  a.set_interval(differing, {a.interval(differing).begin, b.interval(differing).end});
  return true;
}

class Slicing {
 public:
  Slicing(const std::vector<FigureCell>& cells, c10::IntArrayRef sizes, int64_t max_slices)
      : cells_(cells), sizes_(sizes), n_leading_(std::max<int64_t>(0, static_cast<int64_t>(sizes.size()) - 2)) {
    const auto root =
        std::pow(static_cast<double>(max_slices), 1.0 / static_cast<double>(std::max<int64_t>(1, n_leading_)));
    max_ranges_ = std::max(kFewestRanges, static_cast<int64_t>(root + 1e-9));
  }

  std::vector<Slice> run() {
    CellNumbers all(cells_.size());
    for (size_t i = 0; i < all.size(); ++i) all[i] = i;
    if (!all.empty()) descend(all, Box::whole(sizes_.slice(0, n_leading_)), 0);
    return std::move(slices_);
  }

 private:
  /// `where`: ranges of the dims before `dim`, and the whole of later dims. `inside`: the cells that intersect `where`.
  void descend(const CellNumbers& inside, const Box& where, int64_t dim) {
    if (dim == n_leading_) {
      add(inside, where);
      return;
    }
    std::vector<Interval> ranges;
    for (const size_t i : inside) ranges.push_back(cells_[i].box.interval(dim));
    for (const GridSegment& segment : leave_out_middle(intervals_between(ranges), max_ranges_)) {
      Box narrower = where;
      narrower.set_interval(dim, segment.range);
      if (segment.n_left_out > 0) {
        slices_.push_back({{narrower}, {}, {}, {}, segment.n_left_out});
        continue;
      }
      CellNumbers meeting;
      for (size_t i = 0; i < inside.size(); ++i)
        if (ranges[i].begin < segment.range.end && segment.range.begin < ranges[i].end) meeting.push_back(inside[i]);
      if (!meeting.empty()) descend(meeting, narrower, dim + 1);  // the shards of one rank leave holes
    }
  }

  void add(const CellNumbers& inside, const Box& where) {
    const auto [found, is_new] = known_.try_emplace(inside, slices_.size());
    if (!is_new) {
      std::vector<Box>& places = slices_[found->second].where;
      for (Box& place : places)
        if (unite(place, where)) return;
      places.push_back(where);
      return;
    }
    Slice slice{{where}, {}, {}, {}};
    std::vector<Interval> rows, columns;
    for (const size_t i : inside) {
      slice.cells.push_back(cells_[i]);
      rows.push_back(cells_[i].rows);
      columns.push_back(cells_[i].columns);
    }
    slice.rows = intervals_between(rows);
    slice.columns = intervals_between(columns);
    slices_.push_back(std::move(slice));
  }

  const std::vector<FigureCell>& cells_;
  c10::IntArrayRef sizes_;
  int64_t n_leading_, max_ranges_;
  std::vector<Slice> slices_;
  std::map<CellNumbers, size_t> known_;
};

}  // namespace

std::vector<Slice> slices_of(const std::vector<FigureCell>& cells, c10::IntArrayRef sizes, int64_t max_slices) {
  return Slicing(cells, sizes, max_slices).run();
}

}  // namespace shardwise::detail
