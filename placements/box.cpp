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

std::vector<Box> subtract(const Box& a, const Box& b) {
  const Box common = intersect(a, b);
  std::vector<Box> parts;
  if (common.empty()) {
    if (!a.empty()) parts.push_back(a);
    return parts;
  }
  Box rest = a;  // the part of `a` not split off yet; shrinks to `common` dim by dim
  const auto keep = [&](int64_t dim, Interval range) {
    if (range.length() == 0) return;
    parts.push_back(rest);
    parts.back().set_interval(dim, range);
  };
  for (size_t dim = 0; dim < a.sizes.size(); ++dim) {
    const Interval all = rest.interval(dim), middle = common.interval(dim);
    keep(dim, {all.begin, middle.begin});
    keep(dim, {middle.end, all.end});
    rest.set_interval(dim, middle);
  }
  std::sort(parts.begin(), parts.end(), [](const Box& x, const Box& y) {
    return std::lexicographical_compare(x.offsets.begin(), x.offsets.end(), y.offsets.begin(), y.offsets.end());
  });
  return parts;
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
