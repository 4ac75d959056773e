// placements/box.h: intervals and boxes of indices, and the arithmetic on them.
//
// [0,4) x [2,5) is the box of rows 0..3 and columns 2..4: 12 elements.
// A 0-dim tensor has one box without intervals, of one element.
#pragma once

#include <c10/util/ArrayRef.h>
#include <c10/util/DimVector.h>

#include <cstdint>
#include <string>
#include <vector>

namespace shardwise {

/// One extent, offset or index per tensor dimension (or per mesh dimension).
using Dims = c10::DimVector;

/// The half-open range [begin, end) of indices along one dimension.
struct Interval {
  int64_t begin = 0;
  int64_t end = 0;

  int64_t length() const { return end - begin; }
  bool operator==(const Interval&) const = default;
};

/// A rectangle of indices: one half-open interval per dimension.
///
/// Pre: `offsets.size() == sizes.size()`; every size is at least 0.
struct Box {
  Dims offsets;
  Dims sizes;

  /// The box of the whole tensor of these `sizes`.
  static Box whole(c10::IntArrayRef sizes);

  int64_t numel() const;
  bool empty() const { return numel() == 0; }
  Interval interval(int64_t dim) const { return {offsets[dim], offsets[dim] + sizes[dim]}; }
  void set_interval(int64_t dim, Interval range);
  bool contains(const Box& other) const;
  bool operator==(const Box&) const = default;
};

/// The common part of two boxes with the same number of dims. Disjoint boxes give sizes of 0, never negative ones.
Box intersect(const Box& a, const Box& b);

/// "[0:4, 2:5]", in the syntax of Python slices.
std::string to_string(const Box& box);

}  // namespace shardwise
