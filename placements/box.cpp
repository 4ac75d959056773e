#include "placements/box.h"

#include <fmt/ranges.h>

#include <algorithm>

namespace shardwise {

Box Box::whole(c10::IntArrayRef sizes) { return {Dims(sizes.size(), 0), Dims(sizes.begin(), sizes.end())}; }

int64_t Box::numel() const {
  int64_t n = 1;
  for (const int64_t size : sizes) n *= size;
  return n;
}

void Box::set_interval(int64_t dim, Interval range) {
  offsets[dim] = range.begin;
  sizes[dim] = range.length();
}

bool Box::contains(const Box& other) const {
  for (size_t dim = 0; dim < sizes.size(); ++dim) {
    const Interval outer = interval(dim), inner = other.interval(dim);
    if (inner.begin < outer.begin || inner.end > outer.end) return false;
  }
  return true;
}

Box intersect(const Box& a, const Box& b) {
  Box common = a;
  for (size_t dim = 0; dim < a.sizes.size(); ++dim) {
    const Interval x = a.interval(dim), y = b.interval(dim);
    const int64_t begin = std::max(x.begin, y.begin);
    common.set_interval(dim, {begin, std::max(begin, std::min(x.end, y.end))});
  }
  return common;
}

std::string to_string(const Box& box) {
  std::vector<std::string> ranges;
  for (size_t dim = 0; dim < box.sizes.size(); ++dim) {
    const Interval range = box.interval(dim);
    ranges.push_back(fmt::format("{}:{}", range.begin, range.end));
  }
  return fmt::format("[{}]", fmt::join(ranges, ", "));
}

}  // namespace shardwise
