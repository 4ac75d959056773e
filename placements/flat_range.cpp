#include "placements/flat_range.h"

#include <algorithm>

namespace shardwise::detail {
namespace {

/// Adds the boxes that make up `range` in the flattened dims [dim, end) of `whole`.
void add_boxes(Box whole, int64_t dim, int64_t end, Interval range, std::vector<Box>& boxes) {
  if (range.length() <= 0) return;
  const auto add = [&](Interval rows) {
    boxes.push_back(whole);
    boxes.back().set_interval(dim, {whole.offsets[dim] + rows.begin, whole.offsets[dim] + rows.end});
  };
  if (dim + 1 == end) return add(range);
  const auto add_part_of = [&](int64_t row, Interval part) {
    Box one = whole;
    one.set_interval(dim, {whole.offsets[dim] + row, whole.offsets[dim] + row + 1});
    add_boxes(std::move(one), dim + 1, end, part, boxes);
  };
  int64_t row_length = 1;
  for (int64_t inner = dim + 1; inner < end; ++inner) row_length *= whole.sizes[inner];
  int64_t first = range.begin / row_length;
  const int64_t last = range.end / row_length, begin = range.begin % row_length;
  if (begin > 0) {
    add_part_of(first, {begin, std::min(range.end - first * row_length, row_length)});
    ++first;
  }
  if (first < last) add({first, last});
  if (first <= last) add_part_of(last, {0, range.end % row_length});
}

/// The elements that belong to the units [before, end), when `length` elements are distributed over `all` units.
Interval range_of_units(int64_t length, Wide before, Wide end, Wide all) {
  const auto place = [&](Wide n) { return static_cast<int64_t>(length * n / all); };
  return {place(before), place(end)};
}

}  // namespace

Interval flat_range(int64_t length, c10::IntArrayRef units, int64_t coord) {
  Wide before = 0, all = 0;
  for (size_t i = 0; i < units.size(); ++i) {
    if (static_cast<int64_t>(i) < coord) before += units[i];
    all += units[i];
  }
  return range_of_units(length, before, before + units[coord], all);
}

FlatRanges::FlatRanges(c10::IntArrayRef units) : before_{0} {
  before_.reserve(units.size() + 1);
  for (const int64_t n : units) before_.push_back(before_.back() + n);
}

Interval FlatRanges::at(int64_t length, int64_t coord) const {
  return range_of_units(length, before_[coord], before_[coord + 1], before_.back());
}

int64_t flat_length(const Box& whole, int64_t n_flattened) {
  int64_t length = 1;
  for (int64_t dim = 0; dim < n_flattened; ++dim) length *= whole.sizes[dim];
  return length;
}

std::vector<Box> boxes_of_range(const Box& whole, int64_t n_flattened, Interval range) {
  std::vector<Box> boxes;
  add_boxes(whole, 0, n_flattened, range, boxes);
  return boxes;
}

}  // namespace shardwise::detail
