#include "wrappers/infer_layout.h"

#include "placements/placement_list.h"
#include "placements/tiling.h"
#include "runtime/tensor/spec.h"
#include "text/check.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>

namespace shardwise {
namespace {

std::string list(const std::optional<Dims>& dims) {
  return dims ? fmt::format("[{}]", fmt::join(*dims, ", ")) : "nothing";
}

class Finder {
 public:
  Finder(const std::vector<RankPieces>& pieces, std::shared_ptr<const RankGrid> grid,
         const std::vector<Placement>& placements)
      : pieces_(pieces), grid_(std::move(grid)), placements_(placements) {
    SW_CHECK_VALUE(placements.size() == grid_->shape.size(),
                   "[from_local] {} placements {} for a mesh of {} dims: there is one per mesh dim. Give {}.",
                   placements.size(), to_string(placements), grid_->shape.size(), grid_->shape.size());
  }

  InferredLayout run(c10::DeviceType device_type) {
    check_options(device_type);
    const c10::ScalarType dtype = common_dtype();
    find_shape();
    check_inside();
    check_replicas();
    check_tiling();
    return {inferred_layout(), inferred_strides(), dtype};
  }

 private:
  /// The place of the first replica of the rank at `place`.
  size_t first_replica(size_t place) const {
    Dims coord = *grid_->coord_of(grid_->ranks[place]);
    for (size_t m = 0; m < placements_.size(); ++m)
      if (!placements_[m].divides()) coord[m] = 0;
    return std::ranges::find(grid_->ranks, grid_->rank_at(coord)) - grid_->ranks.begin();
  }

  void check_options(c10::DeviceType device_type) const {
    const RankPieces& first = pieces_[0];
    for (const RankPieces& each : pieces_) {
      SW_CHECK_VALUE(each.shape == first.shape && each.stride == first.stride,
                     "[from_local] rank {} gives shape= {} and stride= {}, but rank {} gives {} and {}. Give shape and "
                     "stride of the whole tensor on every rank.",
                     first.rank, list(first.shape), list(first.stride), each.rank, list(each.shape), list(each.stride));
      SW_CHECK_VALUE(each.boxes.empty() || each.device_type == device_type,
                     "[from_local] rank {} gives pieces on {}, the mesh is on {}. Move one of them.", each.rank,
                     c10::DeviceTypeName(each.device_type, true), c10::DeviceTypeName(device_type, true));
    }
  }

  /// The dtype of all ranks with pieces; a rank without pieces may have another.
  c10::ScalarType common_dtype() const {
    auto leader = std::ranges::find_if(pieces_, [](const RankPieces& each) { return !each.boxes.empty(); });
    const bool any = leader != pieces_.end();
    if (!any) leader = pieces_.begin();
    for (const RankPieces& each : pieces_)
      SW_CHECK_VALUE(each.dtype == leader->dtype || (any && each.boxes.empty()),
                     "[from_local] rank {} gives {} pieces, rank {} {}: one tensor has one dtype. Convert one of them.",
                     leader->rank, c10::toString(leader->dtype), each.rank, c10::toString(each.dtype));
    return leader->dtype;
  }

  void find_shape() {
    if (pieces_[0].shape)
      shape_ = *pieces_[0].shape;
    else
      extend_over_pieces();
    for (const RankPieces& each : pieces_)
      for (const Box& box : each.boxes)
        SW_CHECK_VALUE(box.sizes.size() == shape_.size(),
                       "[from_local] the piece {} of rank {} has {} dims, the tensor of shape [{}] has {}. Give pieces "
                       "of one tensor.",
                       to_string(box), each.rank, box.sizes.size(), fmt::join(shape_, ", "), shape_.size());
  }

  void extend_over_pieces() {
    const auto some = std::ranges::find_if(pieces_, [](const RankPieces& each) { return !each.boxes.empty(); });
    TORCH_CHECK_VALUE(some != pieces_.end(),
                      "[from_local] no rank gives a piece, so the tensor has no known shape. Give shape=.");
    shape_.resize(some->boxes[0].sizes.size(), 0);
    for (const RankPieces& each : pieces_)
      for (const Box& box : each.boxes)
        for (size_t dim = 0; dim < std::min(shape_.size(), box.sizes.size()); ++dim)
          shape_[dim] = std::max(shape_[dim], box.offsets[dim] + box.sizes[dim]);
  }

  void check_inside() const {
    for (const RankPieces& each : pieces_)
      for (const Box& box : each.boxes)
        SW_CHECK_VALUE(Box::whole(shape_).contains(box),
                       "[from_local] the piece {} of rank {} reaches outside the tensor of shape [{}]. Correct its "
                       "offsets (a piece of whole rows begins at column 0), or shape=.",
                       to_string(box), each.rank, fmt::join(shape_, ", "));
  }

  void check_replicas() const {
    for (size_t place = 0; place < pieces_.size(); ++place) {
      const RankPieces &each = pieces_[place], &first = pieces_[first_replica(place)];
      SW_CHECK_VALUE(each.boxes == first.boxes,
                     "[from_local] rank {} gives {}, rank {} gives {}, but {} makes them replicas. Give Shard(dim) "
                     "where ranks hold different pieces.",
                     first.rank, list_of(first.boxes), each.rank, list_of(each.boxes), to_string(placements_));
    }
  }

  void check_tiling() const {
    std::vector<Box> boxes;
    std::vector<int64_t> ranks;
    for (size_t place = 0; place < pieces_.size(); ++place) {
      if (first_replica(place) != place) continue;
      for (const Box& box : pieces_[place].boxes) {
        boxes.push_back(box);
        ranks.push_back(pieces_[place].rank);
      }
    }
    if (const auto overlap = find_overlap(boxes)) {
      const auto [a, b] = *overlap;
      SW_CHECK_VALUE(false,
                     "[from_local] the pieces {} of rank {} and {} of rank {} overlap in {}: each element has one "
                     "owner. Make the pieces disjoint, or give Replicate() where ranks hold copies.",
                     to_string(boxes[a]), ranks[a], to_string(boxes[b]), ranks[b],
                     to_string(intersect(boxes[a], boxes[b])));
    }
    if (const auto hole = find_hole(Box::whole(shape_), boxes))
      SW_CHECK_VALUE(false,
                     "[from_local] the pieces leave a hole: {} of the tensor of shape [{}] belongs to no rank. Add the "
                     "missing pieces, or correct shape=.",
                     to_string(*hole), fmt::join(shape_, ", "));
  }

  Layout inferred_layout() const {
    const bool is_flat = placements_.size() == 1;
    if (is_flat && placements_[0].places_boxes()) return named_pieces();
    if (auto named = with_sizes()) {
      Layout layout(shape_, grid_, std::move(*named));
      if (describes(layout)) return layout;
    }
    const bool has_sizes = std::ranges::any_of(
        placements_, [](const Placement& each) { return each.divides() && !each.places_boxes() && !each.is_chunk(); });
    const bool is_copied = std::ranges::none_of(placements_, &Placement::divides) && grid_->size() > 1;
    SW_CHECK_VALUE(is_flat && !has_sizes && !is_copied,
                   "[from_local] the pieces do not match {} of shape [{}] on {}: {}. Give each rank its one piece "
                   "under these placements, or use a 1-D mesh and {}.",
                   to_string(placements_), fmt::join(shape_, ", "), to_string(*grid_), per_rank(),
                   has_sizes ? "Shard(dim) without sizes" : "Shard(dim)");
    return {shape_, grid_, {enumerated()}};
  }

  std::string per_rank() const {
    std::vector<std::string> words;
    for (const RankPieces& each : pieces_)
      words.push_back(fmt::format("rank {} gives {}", each.rank, list_of(each.boxes)));
    return fmt::format("{}", fmt::join(words, ", "));
  }

  Placement enumerated() const {
    std::vector<ShardMetadata> all;
    for (const RankPieces& each : pieces_)
      for (const Box& box : each.boxes) all.push_back({box.offsets, box.sizes, each.rank});
    return Placement::enumerable(std::move(all));
  }

  Layout named_pieces() const {
    Layout layout(shape_, grid_, placements_);
    SW_CHECK_VALUE(
        describes(layout),
        "[from_local] the ranks' pieces do not match {}: {}. Give Shard(0), which accepts the pieces as they are.",
        to_string(placements_), per_rank());
    return layout;
  }

  /// The placements with the extents of the pieces along each sharded dim; nullopt if the extents do not add up.
  std::optional<std::vector<Placement>> with_sizes() const {
    std::vector<Placement> result = placements_;
    for (size_t m = 0; m < result.size(); ++m) {
      if (!result[m].is_chunk()) continue;
      const auto n_dims = static_cast<int64_t>(shape_.size());
      const int64_t dim = result[m].with_dim_from_zero(n_dims).dim();
      if (dim < 0 || dim >= n_dims) continue;  // the Layout's constructor raises the error
      const std::vector<int64_t> lengths = lengths_along(m, dim), outer = outer_lengths(result, m, dim);
      for (size_t piece = 0; piece < outer.size(); ++piece) {
        const auto row = c10::IntArrayRef(lengths).slice(piece * grid_->shape[m], grid_->shape[m]);
        if (std::accumulate(row.begin(), row.end(), int64_t{0}) != outer[piece]) return std::nullopt;
      }
      result[m] = Placement::shard(dim, lengths);
    }
    return result;
  }

  /// Lengths of the pieces into which the mesh dims before `m` split `dim`.
  std::vector<int64_t> outer_lengths(const std::vector<Placement>& placements, size_t m, int64_t dim) const {
    std::vector<Placement> before(placements.size());
    std::copy_n(placements.begin(), m, before.begin());
    return c10::fmap(Layout(shape_, grid_, std::move(before)).shard_intervals(dim),
                     [&](Interval piece) { return piece.length(); });
  }

  /// The extent along `dim` of the ranks' pieces, per coordinate of mesh dim `m` and of earlier mesh dims that shard `dim`.
  std::vector<int64_t> lengths_along(size_t m, int64_t dim) const {
    const auto from_zero = with_dims_from_zero(placements_, static_cast<int64_t>(shape_.size()));
    const auto sharding = mesh_dims_splitting(c10::ArrayRef(from_zero).slice(0, m + 1), dim);
    int64_t n_parts = 1;
    for (const int64_t other : sharding) n_parts *= grid_->shape[other];
    std::vector<std::optional<Interval>> ranges(n_parts);
    for (const RankPieces& each : pieces_) {
      const Dims coord = *grid_->coord_of(each.rank);
      int64_t part = 0;
      for (const int64_t other : sharding) part = part * grid_->shape[other] + coord[other];
      for (const Box& box : each.boxes) {
        if (box.empty()) continue;
        const Interval range = box.interval(dim), known = ranges[part].value_or(range);
        ranges[part] = {std::min(known.begin, range.begin), std::max(known.end, range.end)};
      }
    }
    return c10::fmap(ranges, [&](const auto& range) { return range ? range->length() : 0; });
  }

  /// True if `layout` gives each rank its pieces. A rank without pieces matches an empty box.
  bool describes(const Layout& layout) const {
    return std::ranges::all_of(pieces_, [&](const RankPieces& each) {
      const std::vector<Box> boxes = layout.boxes(each.rank);
      return each.boxes == boxes || (each.boxes.empty() && std::ranges::all_of(boxes, &Box::empty));
    });
  }

  Dims inferred_strides() const {
    if (pieces_[0].stride) return *pieces_[0].stride;
    for (const RankPieces& each : pieces_)
      if (!each.boxes.empty()) return dense_strides(shape_, each.piece_strides);
    return row_major_strides(shape_);
  }

  const std::vector<RankPieces>& pieces_;
  std::shared_ptr<const RankGrid> grid_;
  const std::vector<Placement>& placements_;
  Dims shape_;
};

}  // namespace

InferredLayout infer_layout(const std::vector<RankPieces>& pieces, const std::shared_ptr<const RankGrid>& grid,
                            const std::vector<Placement>& placements, c10::DeviceType device_type) {
  return Finder(pieces, grid, placements).run(device_type);
}

}  // namespace shardwise
