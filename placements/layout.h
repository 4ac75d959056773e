// placements/layout.h: which rank owns which boxes of a tensor.
//
// 11 rows over 3 ranks, Shard(0):  rank 0 [0,4)  rank 1 [4,8)  rank 2 [8,11)
// 2 rows over 3 ranks:             rank 0 [0,1)  rank 1 [1,2)  rank 2 [2,2)  (empty, still a member)
#pragma once

#include "placements/placement.h"

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace shardwise {

/// Ranks in a row-major grid, in any order. Pieces are assigned in the order of the grid.
struct RankGrid {
  Dims shape;                  // extent of each mesh dimension
  std::vector<int64_t> ranks;  // product(shape) global ranks

  int64_t size() const { return static_cast<int64_t>(ranks.size()); }
  /// The coordinate of `rank`, or nothing for a non-member.
  std::optional<Dims> coord_of(int64_t rank) const;
  /// The coordinate of `ranks[index]`.
  Dims coord_at(int64_t index) const;
  int64_t rank_at(c10::IntArrayRef coord) const;
  bool operator==(const RankGrid&) const = default;
};

/// Throws: c10::ValueError if the shape does not hold all ranks, or if a rank is negative or occurs twice.
void check(const RankGrid& grid);

/// "2x3 ranks", "4 ranks", "1 rank".
std::string to_string(const RankGrid& grid);

/// A box and the rank that owns it.
struct OwnedBox {
  int64_t rank = 0;
  Box box;
  bool operator==(const OwnedBox&) const = default;
};

/// The piece sizes when torch.chunk splits `length` elements in `n_parts`: 10 in 4 gives 3,3,3,1; 2 in 3 gives 1,1,0.
Dims chunk_sizes(int64_t length, int64_t n_parts);
/// The sizes of the parts into which `shard` splits a dim of `length` elements. Pre: given sizes are `n_parts`.
Dims part_sizes(const Placement& shard, int64_t length, int64_t n_parts);

/// Which ranks own which elements: a tensor's `sizes`, a grid of ranks and one placement per grid dimension. Immutable.
///
/// Several Shards of one tensor dim nest: grid dim 0 splits it, grid dim 1 splits each piece again.
/// Equal layouts compare equal: explicit sizes that equal torch.chunk's split are stored as the plain Shard, and equal rows of sizes as one
/// row. EnumerableShard stands alone, on a 1-D grid, and tiles the tensor without holes. One RaggedShard may stand among other placements;
/// at any position, it divides the box that all Shards leave. The same holds for a strided Shard, but no later Shard splits its dim.
class Layout {
 public:
  /// Pre:    nothing; everything is checked and negative Shard dims are resolved.
  /// Throws: c10::ValueError (and c10::IndexError for a dim out of range), naming the offending placement.
  Layout(c10::IntArrayRef sizes, std::shared_ptr<const RankGrid> grid, std::vector<Placement> placements);

  c10::IntArrayRef sizes() const { return sizes_; }
  int64_t dim() const { return static_cast<int64_t>(sizes_.size()); }
  const RankGrid& grid() const { return *grid_; }
  const std::shared_ptr<const RankGrid>& grid_ptr() const { return grid_; }
  c10::ArrayRef<Placement> placements() const { return placements_; }

  /// The boxes of global `rank`. A member has exactly one (perhaps empty) under Shard, Replicate and Partial, and any number in a layout in
  /// pieces, in the order that the placement lists them; a RaggedShard's boxes follow each other in row-major memory. A non-member has
  /// none.
  /// Cost: O(dims), with a RaggedShard O(its units), no communication.
  std::vector<Box> boxes(int64_t rank) const;
  /// The box of the member at `coord`. Pre: has_one_box_each().
  Box box_at(c10::IntArrayRef coord) const;
  /// The parts of `box` and the ranks that hold them, by grid order. Each replica of a part is listed; empty parts are not. Cost: O(parts
  /// found + extents of the sharding grid dims); O(pieces) for a layout in pieces.
  ///
  /// `pins`: one coordinate per grid dim, or -1 for any coordinate; without pins all ranks count.
  std::vector<OwnedBox> owners(const Box& box, c10::IntArrayRef pins = {}) const;
  /// The sizes of the local tensor of `rank`: those of its only box, or flat_sizes() if its boxes are joined.
  /// Throws: c10::ValueError if the rank has no box or several.
  Dims local_sizes(int64_t rank) const;

  bool is_replicated() const;  // on every grid dimension
  /// The ranks along some grid dim hold terms that are still to be reduced.
  bool has_terms() const;
  /// True if some grid dim splits tensor dim `tensor_dim`.
  bool splits(int64_t tensor_dim) const;
  /// The number of parts into which the grid dims split `tensor_dim`; 1 if none does.
  int64_t n_parts(int64_t tensor_dim) const;
  /// The number of the part of `tensor_dim` at `coord`, an index of shard_intervals().
  int64_t part_at(int64_t tensor_dim, c10::IntArrayRef coord) const;
  /// True at the first of the coordinates that hold the same values.
  bool is_first_replica(c10::IntArrayRef coord) const;

  /// Every member holds one box, perhaps empty, as the splits of the tensor dims give it. False for a layout in pieces: it places boxes of
  /// the whole tensor, any number per rank, and box_at() and shard_intervals() do not apply.
  bool has_one_box_each() const;
  /// In pieces, and the pieces of each rank form one local tensor: ranges, of shape [elements of the flattened dims, *the other dims], or the
  /// pieces of a strided Shard.
  bool has_joined_boxes() const;
  /// The dim along which the pieces of a rank follow each other in its local tensor, for a strided Shard. Nothing for ranges, which follow each
  /// other in row-major memory, and for layouts that are not joined.
  std::optional<int64_t> joined_dim() const;
  /// In pieces that users listed, which form no local tensor by themselves.
  bool has_listed_boxes() const;
  /// The sizes of the local tensor that joined boxes form; nothing for a non-member and for any other layout.
  std::optional<Dims> flat_sizes(int64_t rank) const;
  /// An EnumerableShard with the same pieces, equivalent to this layout's only placement. Nothing if the layout is not in pieces, if its grid has
  /// several dims, and for a strided Shard.
  std::optional<Placement> enumerated() const;
  /// Every rank's pieces, by rank. Throws: c10::NotImplementedError if the grid has several dims. Pre: !has_one_box_each().
  std::vector<ShardMetadata> pieces() const;

  /// The intervals into which the Shards of `tensor_dim` split it, one per combination of coordinates of the grid dims that shard it
  /// (outermost first). The whole extent if no grid dim does. Pre: has_one_box_each().
  std::vector<Interval> shard_intervals(int64_t tensor_dim) const;

  /// The placements after index i of `tensor_dim` becomes index `moved(i)`, for i from 0 to its size, and each rank keeps its elements.
  /// `moved` never decreases; examples are a slice, a scaling and a padding. Pre: has_one_box_each() or enumerated().
  std::vector<Placement> resized(int64_t tensor_dim, const std::function<int64_t(int64_t)>& moved) const;

  bool operator==(const Layout& other) const;
  size_t hash() const;  // computed once

 private:
  /// The only placement in pieces and its grid dim; null if there is none.
  const Placement* placement_in_pieces(size_t* mesh_dim = nullptr) const;
  void check_in_pieces(size_t mesh_dim) const;
  void check_strided(size_t mesh_dim) const;
  std::vector<Box> boxes_at(c10::IntArrayRef coord, int64_t rank) const;
  std::vector<Interval> intervals_before(int64_t tensor_dim, size_t n_mesh_dims) const;
  struct OwnerSearch;
  void collect_owners(const OwnerSearch& search, size_t mesh_dim, int64_t index, const Box& held,
                      const Dims& piece_number, std::vector<OwnedBox>& found) const;

  Dims sizes_;
  std::shared_ptr<const RankGrid> grid_;
  std::vector<Placement> placements_;  // canonical: dims in [0, dim()), torch.chunk's split as the plain Shard
  size_t hash_ = 0;
};

/// "[11, 5] as [Shard(0), Replicate()] on 2x3 ranks".
std::string to_string(const Layout& layout);
/// "[Shard(0), Replicate()]"; boxes are counted and not listed: "EnumerableShard of 3 pieces".
std::string placements_in_brief(const Layout& layout);

}  // namespace shardwise
