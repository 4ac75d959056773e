#include "placements/split.h"

#include "placements/layout.h"

#include <c10/util/Exception.h>
#include <fmt/format.h>

#include <algorithm>
#include <limits>

namespace shardwise {
namespace {

Interval chunk(Interval range, int64_t n_parts, int64_t coord) {
  const int64_t step = (range.length() + n_parts - 1) / n_parts;
  return {std::min(range.begin + step * coord, range.end), std::min(range.begin + step * (coord + 1), range.end)};
}

/// The sizes of the parts of `range` when its blocks of `block` elements, counted from index 0, are split as torch.chunk splits elements.
Dims block_sizes(Interval range, int64_t block, int64_t n_parts) {
  block = std::min(block, std::max<int64_t>(range.end, 1));
  const Interval blocks{range.begin / block, (range.end + block - 1) / block};
  Dims sizes;
  for (int64_t coord = 0; coord < n_parts; ++coord) {
    const Interval own = chunk(blocks, n_parts, coord);
    sizes.push_back(std::clamp(own.end * block, range.begin, range.end) -
                    std::clamp(own.begin * block, range.begin, range.end));
  }
  return sizes;
}

/// The sum of the sizes, clamped to 2^63 - 1.
int64_t sum(c10::IntArrayRef sizes) {
  int64_t total = 0;
  for (const int64_t size : sizes)
    if (__builtin_add_overflow(total, size, &total)) return std::numeric_limits<int64_t>::max();
  return total;
}

void check_row(c10::IntArrayRef row, Interval piece, bool nested, const Placement& shard) {
  const std::string where =
      nested ? fmt::format("the piece [{}, {}) of tensor dim {}", piece.begin, piece.end, shard.dim())
             : fmt::format("tensor dim {}", shard.dim());
  TORCH_CHECK_VALUE(sum(row) == piece.length(), "[layout] sizes ", row, " of ", to_string(shard), " add up to ",
                    sum(row), ", but ", where, " has ", piece.length(), " elements. Make the sizes sum to ",
                    piece.length(), ".");
}

}  // namespace

Dims chunk_sizes(int64_t length, int64_t n_parts) {
  Dims sizes;
  for (int64_t coord = 0; coord < n_parts; ++coord) sizes.push_back(chunk({0, length}, n_parts, coord).length());
  return sizes;
}

Dims part_sizes(const Placement& shard, int64_t length, int64_t n_parts) {
  if (shard.block() > 0) return block_sizes({0, length}, shard.block(), n_parts);
  return shard.sizes().empty() ? chunk_sizes(length, n_parts) : Dims(shard.sizes());
}

namespace detail {

std::vector<Box> strided_boxes(const Box& whole, const Placement& strided, int64_t n_parts, int64_t coord) {
  const int64_t dim = strided.strided_dim(), factor = strided.split_factor();
  const Interval range = whole.interval(dim);
  std::vector<Box> boxes;
  int64_t end = -1;
  for (int64_t part = 0; part < std::min(factor, range.length()); ++part) {  // later parts are empty
    const Interval own = chunk(chunk(range, factor, part), n_parts, coord);
    if (own.length() == 0) continue;
    if (own.begin != end) boxes.push_back(whole);
    const int64_t begin = own.begin == end ? boxes.back().offsets[dim] : own.begin;
    boxes.back().set_interval(dim, {begin, own.end});
    end = own.end;
  }
  if (boxes.empty()) {
    boxes.push_back(whole);
    boxes.back().set_interval(dim, {range.end, range.end});
  }
  return boxes;
}

namespace {

/// The BlockShard with the extents of its parts of `outer`: a single row if all rows are equal.
Placement in_blocks(const Placement& shard, c10::ArrayRef<Interval> outer, int64_t n_parts) {
  std::vector<int64_t> sizes;
  bool rows_agree = true;
  for (const Interval range : outer) {
    const Dims row = block_sizes(range, shard.block(), n_parts);
    sizes.insert(sizes.end(), row.begin(), row.end());
    rows_agree = rows_agree && std::ranges::equal(row, c10::IntArrayRef(sizes).slice(0, n_parts));
  }
  if (rows_agree) sizes.resize(n_parts);
  return shard.with_sizes(std::move(sizes));
}

}  // namespace

c10::IntArrayRef row_of(const Placement& shard, int64_t outer_number, int64_t n_parts) {
  const auto sizes = shard.sizes();
  const bool shared = static_cast<int64_t>(sizes.size()) <= n_parts;
  return shared ? sizes : sizes.slice(outer_number * n_parts, n_parts);
}

Intervals split(const OuterPiece& outer, const Placement& shard, int64_t n_parts) {
  Intervals pieces;
  const auto row = row_of(shard, outer.number, n_parts);
  int64_t begin = outer.range.begin;
  for (int64_t coord = 0; coord < n_parts; ++coord) {
    pieces.push_back(row.empty() ? chunk(outer.range, n_parts, coord) : Interval{begin, begin + row[coord]});
    begin = pieces.back().end;
  }
  return pieces;
}

OuterPiece split_at(const OuterPiece& outer, const Placement& shard, int64_t n_parts, int64_t coord) {
  const int64_t number = outer.number * n_parts + coord;
  const auto row = row_of(shard, outer.number, n_parts);
  if (row.empty()) return {chunk(outer.range, n_parts, coord), number};
  const int64_t begin = outer.range.begin + sum(row.slice(0, coord));
  return {{begin, begin + row[coord]}, number};
}

std::vector<Interval> split_each(c10::ArrayRef<Interval> outer, const Placement& shard, int64_t n_parts) {
  std::vector<Interval> pieces;
  pieces.reserve(outer.size() * n_parts);
  for (size_t number = 0; number < outer.size(); ++number) {
    const Intervals parts = split({outer[number], static_cast<int64_t>(number)}, shard, n_parts);
    pieces.insert(pieces.end(), parts.begin(), parts.end());
  }
  return pieces;
}

Placement canonical(const Placement& shard, c10::ArrayRef<Interval> outer, int64_t n_parts, int64_t mesh_dim) {
  if (shard.block() > 0) return in_blocks(shard, outer, n_parts);
  const auto n_sizes = static_cast<int64_t>(shard.sizes().size());
  const auto n_outer = static_cast<int64_t>(outer.size());
  if (n_sizes == 0) return shard;
  const std::string or_rows =
      n_outer > 1 ? fmt::format(", or {}, one row per piece of the outer split", n_outer * n_parts) : "";
  TORCH_CHECK_VALUE(n_sizes == n_parts || n_sizes == n_parts * n_outer, "[layout] ", to_string(shard), " has ", n_sizes,
                    " sizes for the ", n_parts, " coordinates of mesh dim ", mesh_dim,
                    ": one size per coordinate is needed. Give ", n_parts, " sizes", or_rows, ".");
  bool is_chunk = true, rows_agree = true;
  for (int64_t number = 0; number < n_outer; ++number) {
    const auto row = row_of(shard, number, n_parts);
    check_row(row, outer[number], n_outer > 1, shard);
    is_chunk = is_chunk && row == c10::IntArrayRef(chunk_sizes(outer[number].length(), n_parts));
    rows_agree = rows_agree && row == row_of(shard, 0, n_parts);
  }
  if (is_chunk) return Placement::shard(shard.dim());
  return rows_agree && n_sizes > n_parts ? Placement::shard(shard.dim(), row_of(shard, 0, n_parts)) : shard;
}

}  // namespace detail

}  // namespace shardwise
