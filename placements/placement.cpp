#include "placements/placement.h"

#include "placements/tiling.h"

#include <c10/util/Exception.h>
#include <c10/util/hash.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <limits>
#include <numeric>

namespace shardwise {
namespace {

constexpr std::array<std::string_view, 5> kReduceNames = {"sum", "avg", "max", "min", "product"};
constexpr size_t kPiecesPrinted = 8;

bool any_negative(c10::IntArrayRef numbers) {
  return std::any_of(numbers.begin(), numbers.end(), [](int64_t n) { return n < 0; });
}

/// A tuple in Python's syntax: "(0, 1)", "(0,)".
std::string tuple_text(c10::IntArrayRef numbers) {
  return fmt::format("({}{})", fmt::join(numbers, ", "), numbers.size() == 1 ? "," : "");
}

/// The dims 0, 1, ..., n - 1.
std::vector<int64_t> leading_dims(int64_t n) {
  std::vector<int64_t> dims(static_cast<size_t>(n));
  std::iota(dims.begin(), dims.end(), 0);
  return dims;
}

/// The units divided by their greatest common divisor.
std::vector<int64_t> reduced(c10::IntArrayRef units) {
  int64_t divisor = 0;
  for (const int64_t n : units) divisor = std::gcd(divisor, n);
  std::vector<int64_t> result = units.vec();
  for (int64_t& n : result) n /= std::max<int64_t>(divisor, 1);
  return result;
}

/// The cases of to_string().
struct Text {
  std::string replicate() const { return "Replicate()"; }
  std::string partial(Reduce reduce) const { return fmt::format("Partial({})", shardwise::to_string(reduce)); }
  std::string shard(int64_t dim, c10::IntArrayRef sizes) const {
    if (sizes.empty()) return fmt::format("Shard({})", dim);
    return fmt::format("Shard({}, sizes=[{}])", dim, fmt::join(sizes, ", "));
  }
  std::string block_shard(int64_t dim, int64_t block) const {
    return fmt::format("BlockShard({}, block={})", dim, block);
  }
  std::string strided_shard(int64_t dim, int64_t factor) const {
    return fmt::format("_StridedShard({}, split_factor={})", dim, factor);
  }
  std::string ragged(c10::IntArrayRef dims, c10::IntArrayRef units) const {
    return fmt::format("RaggedShard(dims={}, local_units={})", tuple_text(dims), tuple_text(units));
  }
  std::string enumerable(c10::ArrayRef<ShardMetadata> pieces) const {
    std::vector<std::string> words;
    for (const ShardMetadata& piece : pieces.slice(0, std::min(pieces.size(), kPiecesPrinted)))
      words.push_back(to_string(piece));
    if (pieces.size() > kPiecesPrinted) words.push_back(fmt::format("... {} more", pieces.size() - kPiecesPrinted));
    return fmt::format("EnumerableShard([{}])", fmt::join(words, ", "));
  }
};

void check_piece(const ShardMetadata& piece, size_t n_dims) {
  TORCH_CHECK_VALUE(piece.offsets.size() == piece.sizes.size(), "[EnumerableShard] ", to_string(piece), " has ",
                    piece.offsets.size(), " offsets and ", piece.sizes.size(),
                    " sizes: one of each per tensor dim is needed. Give lists of one length.");
  TORCH_CHECK_VALUE(piece.sizes.size() == n_dims, "[EnumerableShard] ", to_string(piece), " has ", piece.sizes.size(),
                    " dims, and another piece has ", n_dims,
                    ": all pieces belong to one tensor. Give each piece one number per tensor dim.");
  TORCH_CHECK_VALUE(!any_negative(piece.offsets) && !any_negative(piece.sizes) && piece.rank >= 0, "[EnumerableShard] ",
                    to_string(piece),
                    " holds a negative number: offsets, sizes and ranks count from 0. Use numbers of at least 0.");
  for (size_t dim = 0; dim < n_dims; ++dim)
    TORCH_CHECK_VALUE(piece.sizes[dim] <= std::numeric_limits<int64_t>::max() - piece.offsets[dim],
                      "[EnumerableShard] ", to_string(piece), " ends beyond index 2^63 - 1 of dim ", dim,
                      ", where no tensor has elements. Use smaller offsets and sizes.");
}

}  // namespace

std::string to_string(const ShardMetadata& piece) {
  return fmt::format("ShardMetadata(offsets=[{}], sizes=[{}], rank={})", fmt::join(piece.offsets, ", "),
                     fmt::join(piece.sizes, ", "), piece.rank);
}

std::string_view to_string(Reduce reduce) { return kReduceNames[static_cast<size_t>(reduce)]; }

Reduce reduce_from_string(std::string_view name) {
  if (name == "prod") name = "product";  // programs of torch use both, as torch checks no name here
  const auto* found = std::find(kReduceNames.begin(), kReduceNames.end(), name);
  TORCH_CHECK_VALUE(found != kReduceNames.end(), "[Partial] reduce op '", name, "' is unknown. Use one of ",
                    fmt::format("{}", fmt::join(kReduceNames, ", ")), ".");
  return static_cast<Reduce>(found - kReduceNames.begin());
}

Placement Placement::shard(int64_t dim) {
  Placement placement;
  placement.kind_ = Kind::kShard;
  placement.dim_ = dim;
  return placement;
}

Placement Placement::shard(int64_t dim, c10::IntArrayRef sizes) {
  Placement placement = shard(dim);
  placement.sizes_ = std::make_shared<const std::vector<int64_t>>(sizes.vec());
  TORCH_CHECK_VALUE(
      !sizes.empty(), "[Shard] sizes of Shard(", dim,
      ", sizes=[]) are empty: there is one extent per rank of the mesh dim. Leave sizes out for an even split.");
  TORCH_CHECK_VALUE(!any_negative(sizes), "[Shard] sizes of ", shardwise::to_string(placement),
                    " hold a negative extent: a piece has at least 0 elements. Use 0 for a rank that holds none.");
  return placement;
}

Placement Placement::block_shard(int64_t dim, int64_t block) {
  Placement placement = shard(dim);
  placement.block_ = block;
  TORCH_CHECK_VALUE(block > 0, "[BlockShard] the block of BlockShard(", dim, ", block=", block,
                    ") is below 1: a block has elements. Use 1 or more.");
  return placement;
}

Placement Placement::strided_shard(int64_t dim, int64_t factor) {
  TORCH_CHECK_VALUE(factor > 0, "[_StridedShard] the factor of _StridedShard(", dim, ", split_factor=", factor,
                    ") is below 1: it is the number of parts that are split. Use 1 or more.");
  Placement placement = shard(dim);
  if (factor == 1) return placement;
  placement.kind_ = Kind::kStrided;
  placement.block_ = factor;
  return placement;
}

Placement Placement::partial(Reduce reduce) {
  Placement placement;
  placement.kind_ = Kind::kPartial;
  placement.reduce_ = reduce;
  return placement;
}

Placement Placement::enumerable(std::vector<ShardMetadata> pieces) {
  std::vector<Box> boxes;
  for (const ShardMetadata& piece : pieces) {
    check_piece(piece, pieces.front().sizes.size());
    boxes.push_back(piece.box());
  }
  if (const auto overlap = find_overlap(boxes)) {
    TORCH_CHECK_VALUE(false, "[EnumerableShard] pieces overlap: ", to_string(pieces[overlap->first]), " and ",
                      to_string(pieces[overlap->second]), " share ",
                      shardwise::to_string(intersect(boxes[overlap->first], boxes[overlap->second])),
                      ", and each element belongs to one piece. Make the boxes disjoint.");
  }
  std::stable_sort(pieces.begin(), pieces.end(), [](const auto& a, const auto& b) { return a.rank < b.rank; });
  Placement placement;
  placement.kind_ = Kind::kEnumerable;
  placement.pieces_ = std::make_shared<const std::vector<ShardMetadata>>(std::move(pieces));
  return placement;
}

Placement Placement::ragged(c10::IntArrayRef dims, c10::IntArrayRef units) {
  Placement placement;
  placement.kind_ = Kind::kRagged;
  placement.dim_ = static_cast<int64_t>(dims.size());
  placement.sizes_ = std::make_shared<const std::vector<int64_t>>(units.vec());
  const auto words = [&] {
    return fmt::format("RaggedShard(dims={}, local_units={})", tuple_text(dims), tuple_text(units));
  };
  TORCH_CHECK_VALUE(!dims.empty() && dims == c10::IntArrayRef(leading_dims(placement.dim_)),
                    "[RaggedShard] the dims of ", words(),
                    " are not the leading dims: a rank's part is a range of the flattened leading dims. Use dims=",
                    tuple_text(leading_dims(std::max<int64_t>(placement.dim_, 1))), ".");
  TORCH_CHECK_VALUE(!units.empty(), "[RaggedShard] the local_units of ", words(),
                    " are empty: there is one number per rank of the mesh dim. Give each rank's share.");
  TORCH_CHECK_VALUE(!any_negative(units), "[RaggedShard] the local_units of ", words(),
                    " hold a negative number: they are shares. Use 0 for a rank that holds none.");
  TORCH_CHECK_VALUE(std::any_of(units.begin(), units.end(), [](int64_t n) { return n > 0; }),
                    "[RaggedShard] the local_units of ", words(),
                    " are all zero: some rank must hold the tensor. Give at least one rank a share above 0.");
  return placement;
}

c10::IntArrayRef Placement::sizes() const {
  return sizes_ && kind_ == Kind::kShard ? c10::IntArrayRef(*sizes_) : c10::IntArrayRef();
}

c10::IntArrayRef Placement::units() const {
  return kind_ == Kind::kRagged ? c10::IntArrayRef(*sizes_) : c10::IntArrayRef();
}

std::vector<int64_t> Placement::flattened_dims() const { return leading_dims(n_flattened()); }

c10::ArrayRef<ShardMetadata> Placement::pieces() const {
  return pieces_ ? c10::ArrayRef<ShardMetadata>(*pieces_) : c10::ArrayRef<ShardMetadata>();
}

Placement Placement::with_dim(int64_t dim) const {
  Placement moved = *this;
  moved.dim_ = dim;
  return moved;
}

Placement Placement::with_sizes(std::vector<int64_t> sizes) const {
  Placement sized = *this;
  sized.sizes_ = std::make_shared<const std::vector<int64_t>>(std::move(sizes));
  return sized;
}

Placement Placement::with_dim_from_zero(int64_t n_dims) const {
  return names_dim() && dim_ < 0 && dim_ >= -n_dims ? with_dim(dim_ + n_dims) : *this;
}

bool Placement::operator==(const Placement& other) const {
  return kind_ == other.kind_ && reduce_ == other.reduce_ && dim_ == other.dim_ && block_ == other.block_ &&
         (block_ > 0 || sizes_ == other.sizes_ ||
          (sizes() == other.sizes() && reduced(units()) == reduced(other.units()))) &&
         (pieces_ == other.pieces_ || pieces() == other.pieces());
}

size_t Placement::hash() const {
  size_t seed = c10::get_hash(static_cast<int64_t>(kind_), static_cast<int64_t>(reduce_), dim_, block_,
                              block_ > 0 ? c10::IntArrayRef() : sizes());
  if (kind_ == Kind::kRagged) seed = c10::hash_combine(seed, c10::get_hash(reduced(units())));
  for (const ShardMetadata& piece : pieces()) {
    seed = c10::hash_combine(seed,
                             c10::get_hash(c10::IntArrayRef(piece.offsets), c10::IntArrayRef(piece.sizes), piece.rank));
  }
  return seed;
}

std::string to_string(const Placement& placement) { return placement.visit(Text()); }

std::string to_string(c10::ArrayRef<Placement> placements) {
  std::vector<std::string> words;
  for (const Placement& placement : placements) words.push_back(to_string(placement));
  return fmt::format("[{}]", fmt::join(words, ", "));
}

}  // namespace shardwise
