// placements/placement.h: how one mesh dimension treats a tensor: sharded, replicated or partial.
//
//   Shard(0)                     torch.chunk's split: 10 rows over 4 ranks are 3,3,3,1
//   Shard(0, sizes=[1, 3, 1, 3]) one extent per mesh coordinate; zeros allowed
//   BlockShard(0, block=4)       blocks of 4, none cut: 10 rows over 4 ranks are 4,4,2,0
//   _StridedShard(0, split_factor=2)  each half is split: of 8 rows over 2 ranks, rank 0 has 0,1,4,5
//   Replicate()                  every rank has all of it
//   Partial(sum)                 the tensor is the sum of the ranks' pieces
//   EnumerableShard([...])       any tiling by boxes, any number per rank
//   RaggedShard((0, 1), (2, 3, 0, 5))  ranges of the flattened dims 0 and 1, in these proportions
#pragma once

#include "placements/box.h"

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace shardwise {

/// How the pieces of a Partial tensor combine.
enum class Reduce : uint8_t { kSum, kAvg, kMax, kMin, kProduct };

/// "sum", "avg", "max", "min", "product".
std::string_view to_string(Reduce reduce);

/// The inverse of to_string. Throws: c10::ValueError that lists the five names.
Reduce reduce_from_string(std::string_view name);

/// True for sum and average: they commute with each other and with linear operators.
inline bool is_linear(Reduce reduce) { return reduce == Reduce::kSum || reduce == Reduce::kAvg; }

/// One piece of an EnumerableShard: the box with these `offsets` and `sizes` lives on (global) `rank`.
struct ShardMetadata {
  Dims offsets;
  Dims sizes;
  int64_t rank = 0;

  Box box() const { return {offsets, sizes}; }
  bool operator==(const ShardMetadata&) const = default;
};
std::string to_string(const ShardMetadata& piece);

/// How one mesh dimension treats a tensor. A small value: cheap to copy, compared by meaning.
///
/// Callers ask what a placement does, as far as possible for all mesh dims together (placement_list.h), and not for its kind.
class Placement {
 public:
  Placement() = default;  // Replicate()
  static Placement replicate() { return {}; }
  /// `dim` may be negative until a Layout resolves it.
  static Placement shard(int64_t dim);
  /// `sizes`: one extent (elements) per mesh coordinate. If an outer mesh dimension shards the same tensor dim, give either one row that
  /// applies to every outer piece, or one row per outer piece, outermost first.
  /// Throws: c10::ValueError for a negative extent or an empty list.
  static Placement shard(int64_t dim, c10::IntArrayRef sizes);
  /// Blocks of `block` elements are split among the mesh coordinates as torch.chunk splits elements, and none is cut; the last one may be
  /// short. Blocks are counted from the begin of the tensor dim, so that nested splits keep them whole, too. A Shard in all other respects.
  /// Throws: c10::ValueError for a block below 1.
  static Placement block_shard(int64_t dim, int64_t block);
  /// torch's _StridedShard: torch.chunk splits the tensor dim into `factor` parts, and each part among the mesh coordinates. A rank's pieces,
  /// one per part, form one local tensor in the order of the parts. `dim` as for shard(). A factor of 1 gives shard(dim).
  /// Throws: c10::ValueError for a factor below 1.
  static Placement strided_shard(int64_t dim, int64_t factor);
  static Placement partial(Reduce reduce = Reduce::kSum);
  /// Pieces are stored by rank. The order of one rank's pieces is the order of its local tensors.
  /// Throws: c10::ValueError for pieces that overlap, differ in their number of dims, or have negative numbers.
  static Placement enumerable(std::vector<ShardMetadata> pieces);
  /// Contiguous ranges of the flattened leading `dims`, which must be 0, 1, ... in this order. Each range includes all elements of the
  /// other dims. `units`: one per mesh coordinate; the ranges' lengths are proportional to them; zeros are allowed. Units in the same
  /// proportions give equal placements.
  /// Throws: c10::ValueError for other dims, negative units, and units that are all zero.
  static Placement ragged(c10::IntArrayRef dims, c10::IntArrayRef units);

  // Questions about what the ranks along the mesh dim hold.

  /// All of it: the ranks are replicas.
  bool is_whole() const { return kind_ == Kind::kReplicate; }
  /// Different elements: parts along one tensor dim, or boxes.
  bool divides() const { return kind_ != Kind::kReplicate && kind_ != Kind::kPartial; }
  /// Boxes of the whole tensor, any number per rank, rather than one part along one tensor dim.
  bool places_boxes() const { return kind_ == Kind::kEnumerable || joins_boxes(); }
  /// Boxes, and those of each rank form one local tensor.
  bool joins_boxes() const { return kind_ == Kind::kRagged || kind_ == Kind::kStrided; }
  /// Terms, and the reduction that is still to combine them; nothing for any other placement.
  std::optional<Reduce> terms() const { return is_partial() ? std::optional(reduce_) : std::nullopt; }
  /// Values on which linear operators may run: anything but terms of another reduction than sum and average.
  bool is_linear() const { return !is_partial() || shardwise::is_linear(reduce_); }
  /// One part each of one tensor dim, as torch.chunk splits it, whatever its size.
  bool is_chunk() const { return is_shard() && !sizes_ && block_ == 0; }
  /// The tensor dim that a Shard splits, if it counts from 0; -1 for any other placement.
  int64_t split_dim() const { return is_shard() ? dim_ : -1; }
  /// The tensor dim of which each rank has a part, in one piece or in several; -1 for any other placement.
  int64_t divided_dim() const { return is_shard() ? dim_ : strided_dim(); }
  /// The tensor dim that a strided Shard divides, if it counts from 0; -1 for any other placement.
  int64_t strided_dim() const { return kind_ == Kind::kStrided ? dim_ : -1; }

  // Questions for the kind. Only placements/, plans/ and runtime/rules/ ask them: a new kind of placement has to be thought of there alone,
  // and scripts/check refuses them elsewhere.

  /// Each rank holds a term that is still to be reduced.
  bool is_partial() const { return kind_ == Kind::kPartial; }
  /// Split along one tensor dim.
  bool is_shard() const { return kind_ == Kind::kShard; }
  bool is_shard(int64_t dim) const { return is_shard() && dim_ == dim; }

  /// Pre: is_shard().
  int64_t dim() const { return dim_; }
  /// The explicit extents of a Shard; empty for torch.chunk's split. A BlockShard has some once it is in a Layout.
  c10::IntArrayRef sizes() const;
  /// The elements of a BlockShard's blocks; 0 for any other placement.
  int64_t block() const { return is_shard() ? block_ : 0; }
  /// The parts that a strided Shard splits; 1 for any other placement.
  int64_t split_factor() const { return kind_ == Kind::kStrided ? block_ : 1; }
  /// Pre: is_partial().
  Reduce reduce() const { return reduce_; }
  /// The pieces of an EnumerableShard; empty for any other placement. Layout::pieces() works for every placement in pieces.
  c10::ArrayRef<ShardMetadata> pieces() const;
  /// The units of a RaggedShard, as the user gave them; empty for any other placement.
  c10::IntArrayRef units() const;
  /// How many leading dims a RaggedShard flattens; 0 for any other placement.
  int64_t n_flattened() const { return kind_ == Kind::kRagged ? dim_ : 0; }
  /// These dims: 0, 1, ...
  std::vector<int64_t> flattened_dims() const;

  /// False for a Shard, strided or not, of a dim that a tensor of `n_dims` dims does not have.
  bool fits_dims(int64_t n_dims) const { return !names_dim() || (-n_dims <= dim_ && dim_ < n_dims); }
  /// The same split along another tensor dim. Pre: is_shard(), or strided_dim() >= 0.
  Placement with_dim(int64_t dim) const;
  /// The same split with these extents. Pre: is_shard().
  Placement with_sizes(std::vector<int64_t> sizes) const;
  /// The same placement of a tensor of `n_dims` dims, with a Shard's negative dim counted from the front. A dim out of range is kept.
  Placement with_dim_from_zero(int64_t n_dims) const;

  /// The case for this kind of placement, for code that must name every kind, such as bindings. `cases` has a method for each.
  template <class Cases>
  auto visit(const Cases& cases) const {
    if (is_whole()) return cases.replicate();
    if (is_partial()) return cases.partial(reduce_);
    if (kind_ == Kind::kStrided) return cases.strided_shard(dim_, block_);
    if (block_ > 0) return cases.block_shard(dim_, block_);
    if (is_shard()) return cases.shard(dim_, sizes());
    if (n_flattened() > 0) return cases.ragged(flattened_dims(), units());
    return cases.enumerable(pieces());
  }

  bool operator==(const Placement& other) const;
  /// Equal, or of one kind with other sizes, units or pieces.
  bool is_alike(const Placement& other) const {
    return kind_ == other.kind_ && (names_dim() ? dim_ == other.dim_ : reduce_ == other.reduce_);
  }
  size_t hash() const;

 private:
  enum class Kind : uint8_t { kReplicate, kShard, kPartial, kEnumerable, kRagged, kStrided };
  /// dim_ is a tensor dim, which may be negative until a Layout resolves it.
  bool names_dim() const { return is_shard() || kind_ == Kind::kStrided; }

  Kind kind_ = Kind::kReplicate;
  Reduce reduce_ = Reduce::kSum;
  int64_t dim_ = 0;    // a Shard's dim, or how many dims a RaggedShard flattens
  int64_t block_ = 0;  // a BlockShard's, whose sizes follow from it and are not compared, or a strided Shard's factor
  std::shared_ptr<const std::vector<int64_t>> sizes_;  // a Shard's explicit sizes, or a RaggedShard's units
  std::shared_ptr<const std::vector<ShardMetadata>> pieces_;
};

/// The placement as the user spells it: "Shard(0)", "Shard(0, sizes=[1, 3, 1, 3])", "BlockShard(0, block=4)", "Partial(sum)", "Replicate()", "RaggedShard(dims=(0,
/// 1), local_units=(2, 3, 0, 5))", "_StridedShard(0, split_factor=2)". A long EnumerableShard is cut to its first pieces and the number of the rest.
std::string to_string(const Placement& placement);
/// "[Shard(0), Replicate()]".
std::string to_string(c10::ArrayRef<Placement> placements);

}  // namespace shardwise
