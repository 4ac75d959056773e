#include "placements/layout.h"

#include "placements/flat_range.h"
#include "placements/placement_list.h"
#include "placements/split.h"
#include "placements/tiling.h"

#include <c10/util/Exception.h>
#include <c10/util/hash.h>
#include <fmt/ranges.h>

#include <algorithm>

namespace shardwise {
namespace {

/// True if there are at most 2^62 elements. Zeros count as ones, so that strides fit as well.
bool are_countable(c10::IntArrayRef sizes) {
  int64_t n = int64_t{1} << 62;
  for (const int64_t size : sizes) n /= std::max<int64_t>(size, 1);
  return n > 0;
}

Placement with_dim_in_range(const Placement& shard, c10::IntArrayRef sizes) {
  const auto n_dims = static_cast<int64_t>(sizes.size());
  TORCH_CHECK_INDEX(shard.fits_dims(n_dims), "[layout] tensor dim ", shard.dim(), " of ", to_string(shard),
                    " does not exist: the tensor has ", n_dims, " dims ", sizes, ". Use ",
                    n_dims == 0 ? "Replicate()" : fmt::format("a dim in [{}, {})", -n_dims, n_dims), ".");
  return shard.with_dim_from_zero(n_dims);
}

void check_ragged(const Placement& ragged, c10::IntArrayRef sizes, int64_t n_parts, size_t mesh_dim) {
  const auto n_dims = static_cast<int64_t>(sizes.size());
  TORCH_CHECK_INDEX(ragged.n_flattened() <= n_dims, "[layout] ", to_string(ragged), " flattens ", ragged.n_flattened(),
                    " dims: the tensor has ", n_dims, " dims ", sizes, ". Use ",
                    n_dims == 0 ? "Replicate()" : "at most as many dims", ".");
  TORCH_CHECK_VALUE(static_cast<int64_t>(ragged.units().size()) == n_parts, "[layout] ", to_string(ragged), " has ",
                    ragged.units().size(), " local_units on mesh dim ", mesh_dim, " of ", n_parts,
                    " ranks: there is one number per rank. Give ", n_parts, ", with 0 for a rank that holds none.");
}

void check_pieces(const Placement& placement, c10::IntArrayRef sizes, const RankGrid& grid) {
  const Box whole = Box::whole(sizes);
  std::vector<Box> boxes;
  for (const ShardMetadata& piece : placement.pieces()) {
    TORCH_CHECK_VALUE(grid.coord_of(piece.rank), "[layout] rank ", piece.rank, " of the piece ", to_string(piece.box()),
                      " is not in the mesh of ranks ", c10::IntArrayRef(grid.ranks),
                      ". Place the piece on one of these.");
    TORCH_CHECK_VALUE(piece.sizes.size() == sizes.size(), "[layout] the piece ", to_string(piece.box()), " of rank ",
                      piece.rank, " has ", piece.sizes.size(), " dims: the tensor has ", sizes.size(), " dims ", sizes,
                      ". Give offsets and sizes for each.");
    TORCH_CHECK_VALUE(whole.contains(piece.box()), "[layout] the piece ", to_string(piece.box()), " of rank ",
                      piece.rank, " reaches outside the tensor of sizes ", sizes, ". Keep it within ", to_string(whole),
                      ".");
    boxes.push_back(piece.box());
  }
  if (const auto hole = find_hole(whole, boxes)) {
    TORCH_CHECK_VALUE(false, "[layout] the pieces of EnumerableShard leave a hole: ", to_string(*hole),
                      " of the tensor of sizes ", sizes, " belongs to no rank. Add the missing pieces.");
  }
}

}  // namespace

Layout::Layout(c10::IntArrayRef sizes, std::shared_ptr<const RankGrid> grid, std::vector<Placement> placements)
    : sizes_(sizes.begin(), sizes.end()), grid_(std::move(grid)), placements_(std::move(placements)) {
  TORCH_CHECK_VALUE(grid_, "[layout] the mesh is null: a layout needs ranks. Pass a RankGrid.");
  check(*grid_);
  TORCH_CHECK_VALUE(std::all_of(sizes.begin(), sizes.end(), [](int64_t size) { return size >= 0; }),
                    "[layout] tensor sizes ", sizes, " hold a negative extent. Use sizes of at least 0.");
  TORCH_CHECK_VALUE(are_countable(sizes), "[layout] tensor sizes ", sizes,
                    " have a product above 2^62: elements are counted in 64 bits. Use smaller sizes.");
  const size_t n_mesh_dims = grid_->shape.size();
  TORCH_CHECK_VALUE(placements_.size() == n_mesh_dims, "[layout] ", placements_.size(), " placements ",
                    to_string(placements_), " for a mesh of ", n_mesh_dims, " dims ", c10::IntArrayRef(grid_->shape),
                    ": they must have the same length. Give ", n_mesh_dims, ".");
  for (size_t mesh_dim = 0; mesh_dim < n_mesh_dims; ++mesh_dim) {
    Placement& placement = placements_[mesh_dim];
    if (placement.places_boxes()) {
      if (placement.joins_boxes() && placement.units().empty()) placement = with_dim_in_range(placement, sizes);
      check_in_pieces(mesh_dim);
    } else if (placement.is_shard()) {
      placement = with_dim_in_range(placement, sizes);
      if (!placement.is_chunk()) {
        placement =
            detail::canonical(placement, intervals_before(placement.dim(), mesh_dim), grid_->shape[mesh_dim], mesh_dim);
      }
    }
  }
  hash_ = c10::get_hash(sizes, c10::IntArrayRef(grid_->shape), grid_->ranks);
  for (const Placement& placement : placements_) hash_ = c10::hash_combine(hash_, placement.hash());
}

void Layout::check_in_pieces(size_t mesh_dim) const {
  const Placement& placement = placements_[mesh_dim];
  const size_t n_mesh_dims = placements_.size();
  if (!placement.joins_boxes()) {
    TORCH_CHECK_VALUE(n_mesh_dims == 1, "[layout] EnumerableShard is used on mesh dim ", mesh_dim, " of a mesh of ",
                      n_mesh_dims, " dims ", c10::IntArrayRef(grid_->shape),
                      ": it places the whole tensor by itself. Flatten the mesh to 1 dim.");
    check_pieces(placement, sizes_, *grid_);
    return;
  }
  if (placement.strided_dim() >= 0)
    check_strided(mesh_dim);
  else
    check_ragged(placement, sizes_, grid_->shape[mesh_dim], mesh_dim);
  for (size_t before = 0; before < mesh_dim; ++before)
    TORCH_CHECK_VALUE(!placements_[before].places_boxes(), "[layout] ", to_string(placements_),
                      " places several boxes per rank on mesh dims ", before, " and ", mesh_dim,
                      ": such a placement divides the box that Shards leave, so a layout can have only one. Use Shard "
                      "or Replicate on the other mesh dims, or flatten the mesh to 1 dim.");
}

void Layout::check_strided(size_t mesh_dim) const {
  const Placement& strided = placements_[mesh_dim];
  for (size_t later = mesh_dim + 1; later < placements_.size(); ++later) {
    const int64_t dim = placements_[later].with_dim_from_zero(this->dim()).divided_dim();
    TORCH_CHECK_VALUE(dim != strided.strided_dim(), "[layout] ", to_string(placements_), " splits dim ", dim,
                      " again after a strided Shard: each of its pieces would be cut. Let mesh dim ", later,
                      " shard another tensor dim, or stand before mesh dim ", mesh_dim, ".");
  }
}

std::vector<Box> Layout::boxes(int64_t rank) const {
  const auto coord = grid_->coord_of(rank);
  return coord ? boxes_at(*coord, rank) : std::vector<Box>{};
}

std::vector<Box> Layout::boxes_at(c10::IntArrayRef coord, int64_t rank) const {
  size_t m = 0;
  const Placement* placement = placement_in_pieces(&m);
  if (!placement) return {box_at(coord)};
  const Box whole = box_at(coord);
  if (placement->strided_dim() >= 0) return detail::strided_boxes(whole, *placement, grid_->shape[m], coord[m]);
  if (const int64_t n = placement->n_flattened(); n > 0) {
    const Interval range = detail::FlatRanges(placement->units()).at(detail::flat_length(whole, n), coord[m]);
    return detail::boxes_of_range(whole, n, range);
  }
  std::vector<Box> boxes;
  const auto all = placement->pieces();
  auto piece = std::lower_bound(all.begin(), all.end(), rank, [](const auto& p, int64_t r) { return p.rank < r; });
  for (; piece != all.end() && piece->rank == rank; ++piece) boxes.push_back(piece->box());
  return boxes;
}

std::optional<Dims> Layout::flat_sizes(int64_t rank) const {
  size_t m = 0;
  const Placement* placement = placement_in_pieces(&m);
  const auto coord = grid_->coord_of(rank);
  if (!placement || !placement->joins_boxes() || !coord) return std::nullopt;
  const Box whole = box_at(*coord);
  if (const int64_t dim = placement->strided_dim(); dim >= 0) {
    Dims sizes = whole.sizes;
    sizes[dim] = 0;
    for (const Box& box : boxes_at(*coord, rank)) sizes[dim] += box.sizes[dim];
    return sizes;
  }
  const int64_t n = placement->n_flattened();
  Dims sizes{detail::FlatRanges(placement->units()).at(detail::flat_length(whole, n), (*coord)[m]).length()};
  sizes.append(whole.sizes.begin() + n, whole.sizes.end());
  return sizes;
}

Box Layout::box_at(c10::IntArrayRef coord) const {
  Box box = Box::whole(sizes_);
  Dims piece_number(sizes_.size(), 0);
  for (size_t mesh_dim = 0; mesh_dim < placements_.size(); ++mesh_dim) {
    const Placement& placement = placements_[mesh_dim];
    if (!placement.is_shard()) continue;
    const int64_t dim = placement.dim();
    const auto piece =
        detail::split_at({box.interval(dim), piece_number[dim]}, placement, grid_->shape[mesh_dim], coord[mesh_dim]);
    box.set_interval(dim, piece.range);
    piece_number[dim] = piece.number;
  }
  return box;
}

struct Layout::OwnerSearch {
  const Box& wanted;
  c10::IntArrayRef pins;

  bool admits(size_t mesh_dim, int64_t coord) const {
    return pins.empty() || pins[mesh_dim] < 0 || pins[mesh_dim] == coord;
  }
  bool admits(const Dims& coord) const {
    for (size_t m = 0; m < coord.size(); ++m)
      if (!admits(m, coord[m])) return false;
    return true;
  }
};

std::vector<OwnedBox> Layout::owners(const Box& box, c10::IntArrayRef pins) const {
  std::vector<OwnedBox> found;
  const Box part = intersect(Box::whole(sizes_), box);
  if (part.empty()) return found;
  const OwnerSearch search{part, pins};
  if (has_one_box_each()) {
    collect_owners(search, 0, 0, Box::whole(sizes_), Dims(sizes_.size(), 0), found);
    return found;
  }
  size_t m = 0;
  const Placement* placement = placement_in_pieces(&m);
  const detail::FlatRanges ranges(placement->units());
  const auto pieces_at = [&](const Dims& coord, int64_t rank) {
    const int64_t n = placement->n_flattened();
    if (n == 0) return boxes_at(coord, rank);
    const Box whole_there = box_at(coord);
    return detail::boxes_of_range(whole_there, n, ranges.at(detail::flat_length(whole_there, n), coord[m]));
  };
  for (int64_t index = 0; index < grid_->size(); ++index) {
    const int64_t rank = grid_->ranks[index];
    const Dims coord = grid_->coord_at(index);
    if (!search.admits(coord)) continue;
    for (const Box& piece : pieces_at(coord, rank)) {
      Box common = intersect(piece, part);
      if (!common.empty()) found.push_back({rank, std::move(common)});
    }
  }
  return found;
}

/// Descends the grid dims and skips pieces outside the wanted box. `held` is the box that the splits of the grid dims before `mesh_dim`
/// leave at grid position `index`; `piece_number` is its index among such boxes, per tensor dim.
void Layout::collect_owners(const OwnerSearch& search, size_t mesh_dim, int64_t index, const Box& held,
                            const Dims& piece_number, std::vector<OwnedBox>& found) const {
  if (mesh_dim == placements_.size()) {
    found.push_back({grid_->ranks[index], intersect(held, search.wanted)});
    return;
  }
  const Placement& placement = placements_[mesh_dim];
  const int64_t n_parts = grid_->shape[mesh_dim];
  if (!placement.is_shard()) {
    for (int64_t coord = 0; coord < n_parts; ++coord)
      if (search.admits(mesh_dim, coord))
        collect_owners(search, mesh_dim + 1, index * n_parts + coord, held, piece_number, found);
    return;
  }
  const int64_t dim = placement.dim();
  const auto pieces = detail::split({held.interval(dim), piece_number[dim]}, placement, n_parts);
  const Interval range = search.wanted.interval(dim);
  for (int64_t coord = 0; coord < n_parts; ++coord) {
    if (std::max(pieces[coord].begin, range.begin) >= std::min(pieces[coord].end, range.end)) continue;
    if (!search.admits(mesh_dim, coord)) continue;
    Box piece = held;
    piece.set_interval(dim, pieces[coord]);
    Dims number = piece_number;
    number[dim] = number[dim] * n_parts + coord;
    collect_owners(search, mesh_dim + 1, index * n_parts + coord, piece, number, found);
  }
}

Dims Layout::local_sizes(int64_t rank) const {
  if (const auto sizes = flat_sizes(rank)) return *sizes;
  const auto boxes = this->boxes(rank);
  TORCH_CHECK_VALUE(boxes.size() == 1, "[local_sizes] rank ", rank, " holds ", boxes.size(), " pieces of ",
                    to_string(*this), ": local_sizes() needs a single piece. Use boxes(rank).");
  return boxes.front().sizes;
}

bool Layout::is_replicated() const {
  return std::all_of(placements_.begin(), placements_.end(), [](const Placement& p) { return p.is_whole(); });
}

bool Layout::has_terms() const {
  return std::any_of(placements_.begin(), placements_.end(), [](const Placement& p) { return p.is_partial(); });
}

bool Layout::splits(int64_t tensor_dim) const { return shardwise::splits(placements_, tensor_dim); }

int64_t Layout::n_parts(int64_t tensor_dim) const {
  int64_t n = 1;
  for (const int64_t m : mesh_dims_splitting(placements_, tensor_dim)) n *= grid_->shape[m];
  return n;
}

int64_t Layout::part_at(int64_t tensor_dim, c10::IntArrayRef coord) const {
  int64_t number = 0;
  for (const int64_t m : mesh_dims_splitting(placements_, tensor_dim)) number = number * grid_->shape[m] + coord[m];
  return number;
}

bool Layout::is_first_replica(c10::IntArrayRef coord) const {
  return coord == c10::IntArrayRef(first_replica(placements_, coord));
}

const Placement* Layout::placement_in_pieces(size_t* mesh_dim) const {
  for (size_t m = 0; m < placements_.size(); ++m)
    if (placements_[m].places_boxes()) {
      if (mesh_dim) *mesh_dim = m;
      return &placements_[m];
    }
  return nullptr;
}

bool Layout::has_one_box_each() const { return placement_in_pieces() == nullptr; }

bool Layout::has_joined_boxes() const {
  const Placement* placement = placement_in_pieces();
  return placement && placement->joins_boxes();
}

std::optional<int64_t> Layout::joined_dim() const {
  const Placement* placement = placement_in_pieces();
  return placement && placement->strided_dim() >= 0 ? std::optional(placement->strided_dim()) : std::nullopt;
}

bool Layout::has_listed_boxes() const { return !has_one_box_each() && !has_joined_boxes(); }

std::optional<Placement> Layout::enumerated() const {
  if (has_one_box_each() || placements_.size() != 1 || joined_dim()) return std::nullopt;
  return has_joined_boxes() ? Placement::enumerable(pieces()) : placements_[0];
}

std::vector<ShardMetadata> Layout::pieces() const {
  TORCH_CHECK_NOT_IMPLEMENTED(placements_.size() == 1, "[layout] ", to_string(*this),
                              " is in pieces on a mesh of several dims; the operator supports this only on a 1-D mesh. "
                              "Redistribute it first, with Shard or Replicate in its place.");
  if (!has_joined_boxes()) return placements_[0].pieces().vec();
  std::vector<ShardMetadata> pieces;
  for (int64_t index = 0; index < grid_->size(); ++index)
    for (const Box& box : boxes_at(Dims{index}, grid_->ranks[index]))
      pieces.push_back({box.offsets, box.sizes, grid_->ranks[index]});
  std::stable_sort(pieces.begin(), pieces.end(), [](const auto& a, const auto& b) { return a.rank < b.rank; });
  return pieces;
}

std::vector<Interval> Layout::shard_intervals(int64_t tensor_dim) const {
  return intervals_before(tensor_dim, placements_.size());
}

std::vector<Interval> Layout::intervals_before(int64_t tensor_dim, size_t n_mesh_dims) const {
  std::vector<Interval> pieces = {{0, sizes_[tensor_dim]}};
  for (size_t mesh_dim = 0; mesh_dim < n_mesh_dims; ++mesh_dim) {
    if (placements_[mesh_dim].is_shard(tensor_dim))
      pieces = detail::split_each(pieces, placements_[mesh_dim], grid_->shape[mesh_dim]);
  }
  return pieces;
}

std::vector<Placement> Layout::resized(int64_t tensor_dim, const std::function<int64_t(int64_t)>& moved) const {
  const auto image = [&](Interval range) { return Interval{moved(range.begin), moved(range.end)}; };
  if (!has_one_box_each()) {
    std::vector<ShardMetadata> pieces = this->pieces();
    for (ShardMetadata& piece : pieces) {
      const Interval range = image(piece.box().interval(tensor_dim));
      piece.offsets[tensor_dim] = range.begin;
      piece.sizes[tensor_dim] = range.length();
    }
    return {Placement::enumerable(std::move(pieces))};
  }
  std::vector<Placement> placements = placements_;
  std::vector<Interval> ranges = {{0, sizes_[tensor_dim]}};
  for (const int64_t mesh_dim : mesh_dims_splitting(placements_, tensor_dim)) {
    ranges = detail::split_each(ranges, placements_[mesh_dim], grid_->shape[mesh_dim]);
    std::vector<int64_t> lengths;
    for (const Interval range : ranges) lengths.push_back(image(range).length());
    const bool keeps = std::ranges::equal(ranges, lengths, {}, &Interval::length);
    if (!keeps) placements[mesh_dim] = Placement::shard(tensor_dim, lengths);
  }
  return placements;
}

bool Layout::operator==(const Layout& other) const {
  return hash_ == other.hash_ && sizes_ == other.sizes_ && (grid_ == other.grid_ || *grid_ == *other.grid_) &&
         placements_ == other.placements_;
}

size_t Layout::hash() const { return hash_; }

std::string to_string(const Layout& layout) {
  return fmt::format("[{}] as {} on {}", fmt::join(layout.sizes(), ", "), to_string(layout.placements()),
                     to_string(layout.grid()));
}

std::string placements_in_brief(const Layout& layout) {
  if (!layout.has_listed_boxes()) return to_string(layout.placements());
  return fmt::format("EnumerableShard of {} pieces", layout.pieces().size());
}

}  // namespace shardwise
