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

}  // namespace

FlatRanges::FlatRanges(c10::IntArrayRef units) : before_{0} {
  before_.reserve(units.size() + 1);
  for (const int64_t n : units) before_.push_back(before_.back() + n);
}

Interval FlatRanges::at(int64_t length, int64_t coord) const {
  const auto place = [&](Wide units) { return static_cast<int64_t>(length * units / before_.back()); };
  return {place(before_[coord]), place(before_[coord + 1])};
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
