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

/// Ranks arranged in a grid, row-major, in any order; pieces are dealt in that order.
struct RankGrid {
  Dims shape;                  // extent of each mesh dimension
  std::vector<int64_t> ranks;  // product(shape) global ranks

  int64_t size() const { return static_cast<int64_t>(ranks.size()); }
  /// The coordinate of `rank`, or nothing for a non-member.
  std::optional<Dims> coord_of(int64_t rank) const;
  int64_t rank_at(c10::IntArrayRef coord) const;
  bool operator==(const RankGrid&) const = default;
};

/// Throws: c10::ValueError for a shape that does not hold the ranks, duplicate or negative ranks.
void check(const RankGrid& grid);

/// "2x3 ranks", "4 ranks", "1 rank".
std::string to_string(const RankGrid& grid);

/// A box and the rank that owns it.
struct OwnedBox {
  int64_t rank = 0;
  Box box;
  bool operator==(const OwnedBox&) const = default;
};

/// The extents of torch.chunk's split of `length` elements in `n_parts`: 10 in 4 is 3,3,3,1; 2 in 3 is 1,1,0.
Dims chunk_sizes(int64_t length, int64_t n_parts);

/// A tensor's `sizes`, a grid of ranks and a placement per grid dimension: who owns what. Immutable.
///
/// Several Shards of one tensor dim nest: grid dim 0 splits it, grid dim 1 splits each piece again.
/// Explicit sizes that equal torch.chunk's split are stored as the plain Shard, and rows that agree as one row, so equal
/// layouts compare equal. EnumerableShard stands alone, on a 1-D grid, and tiles the tensor without holes. One RaggedShard may stand
/// among other placements: wherever it stands, its ranges are of the box that all Shards leave.
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

  /// The boxes of global `rank`: one for a member under Shard, Replicate and Partial (perhaps empty), any number of a
  /// layout in pieces, in the order written, none for a non-member; those of a RaggedShard follow each other in row-major memory.
  /// Cost: O(dims), with a RaggedShard O(its units), no communication.
  std::vector<Box> boxes(int64_t rank) const;
  /// The box of the member at `coord`. Pre: !in_pieces().
  Box box_at(c10::IntArrayRef coord) const;
  /// The parts of `box` and the ranks that hold them, by grid order; a replicated part comes once per replica. Never
  /// an empty part. Cost: O(parts found + extents of the sharding grid dims); O(pieces) of a layout in pieces.
  ///
  /// `pins`: one coordinate per grid dim, or -1 where any will do; without pins all ranks count.
  std::vector<OwnedBox> owners(const Box& box, c10::IntArrayRef pins = {}) const;
  /// The sizes of the tensor that `rank` holds: of its only box, or of its range where the layout is ragged.
  /// Throws: c10::ValueError where it has no box or several.
  Dims local_sizes(int64_t rank) const;

  bool is_partial() const;                  // on some grid dimension
  bool is_replicated() const;               // on every grid dimension
  bool is_shard(int64_t tensor_dim) const;  // on some grid dimension
  /// Placed by boxes of the whole tensor, any number per rank: box_at and shard_intervals do not apply.
  bool in_pieces() const;
  /// In pieces of which each rank's make up one tensor, [elements of the flattened dims, *the other dims].
  bool is_ragged() const;
  /// The sizes of that tensor; nothing for a non-member, and where the layout is not ragged.
  std::optional<Dims> flat_sizes(int64_t rank) const;
  /// The EnumerableShard of the same pieces, which may be written in the place of this layout's only placement. Nothing where the layout
  /// is not in pieces, or its grid has other dims besides.
  std::optional<Placement> enumerated() const;
  /// Every rank's pieces, by rank. Throws: c10::NotImplementedError where the grid has several dims. Pre: in_pieces().
  std::vector<ShardMetadata> pieces() const;

  /// The extents along `tensor_dim` as its Shards split it, per combination of the coordinates of the grid dims that
  /// shard it (outermost first); one whole extent where nothing does. Pre: !in_pieces().
  std::vector<Interval> shard_intervals(int64_t tensor_dim) const;

  /// The placements of the tensor once index i of `tensor_dim` is index `moved(i)`, for i from 0 to its size: each rank keeps what
  /// becomes of its elements. `moved` never decreases; a slice, a scaling and a padding are such moves. Pre: !in_pieces() or enumerated().
  std::vector<Placement> resized(int64_t tensor_dim, const std::function<int64_t(int64_t)>& moved) const;

  bool operator==(const Layout& other) const;
  size_t hash() const;  // computed once

 private:
  /// Of the placements in pieces the only one, and its grid dim; null where there is none.
  const Placement* placement_in_pieces(size_t* mesh_dim = nullptr) const;
  void check_in_pieces(size_t mesh_dim) const;
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

}  // namespace shardwise
