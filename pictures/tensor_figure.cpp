#include "pictures/tensor_figure.h"

#include "pictures/grid_segments.h"
#include "pictures/mesh_figure.h"
#include "placements/placement_list.h"
#include "text/rank_names.h"
#include "text/table.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

namespace shardwise {
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
    for (const detail::GridSegment& segment : detail::leave_out_middle(intervals_between(ranges), max_ranges_)) {
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

/// The slices of a tensor of these `sizes`, whose boxes are those of `cells` (disjoint, not empty): a new slice wherever the set of boxes changes.
/// Ranges that are not adjacent but have the same boxes share one slice.
///
/// At most max_slices^(1 / number of leading dims) ranges of each leading dim are used, but at least 4. The ranges in the middle of the dim that are
/// left out become one slice without cells. Cost: O(cells * slices).
std::vector<Slice> slices_of(const std::vector<FigureCell>& cells, c10::IntArrayRef sizes, int64_t max_slices) {
  return Slicing(cells, sizes, max_slices).run();
}

Interval range_or_one(const Box& box, int64_t dim) { return dim < 0 ? Interval{0, 1} : box.interval(dim); }

std::vector<RankShare> shares_of(const Layout& layout, int64_t element_bytes) {
  std::vector<RankShare> shares;
  for (int64_t index = 0; index < layout.grid().size(); ++index) {
    const int64_t rank = layout.grid().ranks[index];
    shares.push_back({rank, {}, 0});
    shares.back().boxes =
        layout.has_one_box_each() ? std::vector{layout.box_at(layout.grid().coord_at(index))} : layout.boxes(rank);
    for (const Box& box : shares.back().boxes) shares.back().n_bytes += box.numel() * element_bytes;
  }
  return shares;
}

/// The number of the term of the reduction that the rank at `index` of the grid holds.
int64_t term_at(const Layout& layout, int64_t index) {
  const Dims coord = layout.grid().coord_at(index);
  int64_t term = 0;
  for (const int64_t mesh_dim : mesh_dims_with_terms(layout.placements()))
    term = term * layout.grid().shape[mesh_dim] + coord[mesh_dim];
  return term;
}

/// The distinct boxes with elements, which are disjoint.
std::vector<FigureCell> cells_of(const TensorFigure& figure) {
  const auto n_dims = static_cast<int64_t>(figure.sizes.size());
  std::map<std::vector<int64_t>, size_t> at_offsets;
  std::vector<FigureCell> cells;
  for (size_t index = 0; index < figure.shares.size(); ++index) {
    for (const Box& box : figure.shares[index].boxes) {
      if (box.empty()) continue;
      const auto [found, is_new] = at_offsets.try_emplace({box.offsets.begin(), box.offsets.end()}, cells.size());
      if (is_new) cells.push_back({range_or_one(box, n_dims - 2), range_or_one(box, n_dims - 1), box, {}, {}});
      FigureCell& cell = cells[found->second];
      cell.ranks.push_back(figure.shares[index].rank);
      if (figure.n_terms == 1) continue;
      cell.terms.resize(figure.n_terms);
      cell.terms[term_at(*figure.layout, static_cast<int64_t>(index))].push_back(figure.shares[index].rank);
    }
  }
  return cells;
}

std::string reductions_of(const Layout& layout) {
  std::vector<std::string_view> words;
  for (const int64_t mesh_dim : mesh_dims_with_terms(layout.placements())) {
    const auto word = to_string(*layout.placements()[mesh_dim].terms());
    if (words.empty() || words.back() != word) words.push_back(word);
  }
  return fmt::format("{}", fmt::join(words, " of "));
}

/// "4 ranks (0-3)"; with names "(dp=2, tp=2)", and the ranks unless they are 0, 1, 2, ...
std::string mesh_words(const RankGrid& grid, const std::vector<std::string>& dim_names) {
  if (dim_names.empty()) return fmt::format("{} ({})", to_string(grid), detail::rank_list(grid.ranks));
  const std::string named = detail::named_shape(grid, dim_names);
  bool is_usual = true;
  for (int64_t i = 0; i < grid.size(); ++i) is_usual &= grid.ranks[i] == i;
  return is_usual ? named : fmt::format("{}, {}", named, detail::rank_words(grid.ranks));
}

std::string index_of(Interval range, int64_t size) {
  if (range == Interval{0, size}) return ":";
  return range.length() == 1 ? fmt::format("{}", range.begin) : fmt::format("{}:{}", range.begin, range.end);
}

}  // namespace

TensorFigure tensor_figure(const Layout& layout, int64_t element_bytes, const std::vector<std::string>& dim_names,
                           int64_t max_slices) {
  TensorFigure figure;
  figure.layout = layout;
  figure.dim_names = dim_names;
  figure.sizes = Dims(layout.sizes());
  figure.element_bytes = element_bytes;
  figure.reductions = reductions_of(layout);
  figure.shares = shares_of(layout, element_bytes);
  for (const int64_t mesh_dim : mesh_dims_with_terms(layout.placements()))
    figure.n_terms *= layout.grid().shape[mesh_dim];
  figure.slices = slices_of(cells_of(figure), layout.sizes(), max_slices);
  return figure;
}

TensorFigure tensor_figure(const LocalShards& shards, int64_t element_bytes, int64_t max_slices) {
  TensorFigure figure;
  figure.element_bytes = element_bytes;
  RankShare& share = figure.shares.emplace_back(RankShare{shards.rank, shards.boxes, 0});
  for (const Box& box : shards.boxes) {
    share.n_bytes += box.numel() * element_bytes;
    figure.sizes.resize(box.sizes.size(), 0);
    for (size_t dim = 0; dim < figure.sizes.size(); ++dim)
      figure.sizes[dim] = std::max(figure.sizes[dim], box.offsets[dim] + box.sizes[dim]);
  }
  figure.slices = slices_of(cells_of(figure), figure.sizes, max_slices);
  return figure;
}

int64_t bytes_of_tensor(const TensorFigure& figure) {
  return figure.layout ? Box::whole(figure.sizes).numel() * figure.element_bytes : 0;
}

std::string heading(const Slice& slice, c10::IntArrayRef sizes) {
  std::vector<std::string> places;
  for (const Box& place : slice.where) {
    std::vector<std::string> indices;
    for (size_t dim = 0; dim < place.sizes.size(); ++dim) indices.push_back(index_of(place.interval(dim), sizes[dim]));
    places.push_back(fmt::format("[{}]", fmt::join(indices, ", ")));
  }
  return fmt::format("{}", fmt::join(places, " and "));
}

std::string name_of_local_shards(size_t n_shards) {
  return fmt::format("LocalShardsWrapper of {} shard{}", n_shards, n_shards == 1 ? "" : "s");
}

std::string caption(const TensorFigure& figure, int64_t max_width) {
  constexpr const char* kEllipsis = "...";
  if (!figure.layout) {
    const RankShare& share = figure.shares.front();
    return fmt::format("{} on rank {}, {} bytes", name_of_local_shards(share.boxes.size()), share.rank,
                       detail::with_commas(share.n_bytes));
  }
  const Layout& layout = *figure.layout;
  const std::string head = fmt::format("[{}] as ", fmt::join(layout.sizes(), ", "));
  const std::string mesh = mesh_words(layout.grid(), figure.dim_names);
  const std::string tail = fmt::format(" on {}, {} bytes", mesh, detail::with_commas(bytes_of_tensor(figure)));
  std::string placements = placements_in_brief(layout);
  const auto room = std::max<int64_t>(20, max_width - static_cast<int64_t>(head.size() + tail.size()));
  if (max_width > 0 && static_cast<int64_t>(placements.size()) > room)
    placements = placements.substr(0, room - 3) + kEllipsis;
  return head + placements + tail;
}

std::string note_on_terms(const TensorFigure& figure) {
  if (figure.n_terms == 1) return "";
  const bool has_order = figure.reductions.find(' ') != std::string::npos;
  return fmt::format("a stack of {} terms: their {} is the tensor{}", figure.n_terms, figure.reductions,
                     has_order ? "; the last mesh dim is reduced first" : "");
}

}  // namespace shardwise
