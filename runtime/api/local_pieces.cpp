#include "runtime/api/local_pieces.h"

#include "placements/layout.h"
#include "placements/placement_list.h"
#include "runtime/api/gradients.h"
#include "runtime/comm/agreement.h"
#include "runtime/comm/collectives.h"
#include "runtime/tensor/subclass.h"
#include "text/check.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>

namespace shardwise {
namespace {

constexpr const char* kGiveShape =
    "Give shape= and stride= of the whole tensor, and Shard(dim, sizes=[...]) or run_check=True where the ranks' "
    "pieces "
    "differ in size.";

void check_piece(const at::Tensor& piece, size_t i, const Spec& spec) {
  SW_CHECK_VALUE(piece.scalar_type() == spec.dtype(), "[from_local] piece {} is {}, the tensor {}. Use one dtype.", i,
                 c10::toString(piece.scalar_type()), c10::toString(spec.dtype()));
  SW_CHECK_VALUE(piece.device().type() == spec.mesh()->device_type(),
                 "[from_local] piece {} is on {}, the mesh on {}. Move one of them.", i, piece.device().str(),
                 c10::DeviceTypeName(spec.mesh()->device_type(), true));
}

/// The facts that one rank has about the tensor.
struct PieceFacts {
  c10::ScalarType dtype;
  bool is_recorded;  // autograd records operations on it
  bool is_meta;
  Dims sizes;  // of the whole tensor
  Dims piece;  // sizes of this rank's piece
};

std::string kind_of(const at::Tensor& local) { return is_subclass(local) ? "a " + class_of(local) : "a tensor"; }

std::vector<PieceFacts> facts_of_all(const Group& group, const at::Tensor& local, const Spec& spec) {
  Facts own(kind_of(local));
  own.number(static_cast<int64_t>(spec.dtype())).number(records(local)).number(local.is_meta());
  own.list(spec.sizes()).list(local.sizes());
  std::vector<PieceFacts> result;
  for (const Facts& facts : agree(group, "from_local", own)) {
    FactReader reader(facts);
    PieceFacts& fact = result.emplace_back();
    fact.dtype = static_cast<c10::ScalarType>(reader.number());
    fact.is_recorded = reader.number() != 0;
    fact.is_meta = reader.number() != 0;
    fact.sizes = reader.list();
    fact.piece = reader.list();
  }
  return result;
}

}  // namespace

void check_has_sizes(const char* op, const at::Tensor& tensor) {
  SW_CHECK_NOT_IMPLEMENTED(
      !tensor.is_nested() && tensor.layout() != c10::kJagged,
      "[{}] a nested tensor of {} dims has no fixed sizes, so placements do not apply to it. Give its values() and "
      "keep the offsets separately, or give torch.nested.to_padded_tensor(tensor, 0).",
      op, tensor.dim());
}

Dims sizes_of_even_shards(c10::IntArrayRef local, const DeviceMesh& mesh, const std::vector<Placement>& placements) {
  Dims sizes(local);
  std::vector<bool> is_known(sizes.size());
  for (size_t m = 0; m < placements.size(); ++m) {
    for (const ShardMetadata& piece : placements[m].pieces())
      for (size_t dim = 0; dim < sizes.size(); ++dim)
        sizes[dim] = std::max(sizes[dim], piece.offsets[dim] + piece.sizes[dim]);
    const int64_t dim = placements[m].with_dim_from_zero(static_cast<int64_t>(sizes.size())).divided_dim();
    if (dim < 0 || dim >= static_cast<int64_t>(sizes.size()) || is_known[dim]) continue;  // Layout reports these
    if (placements[m].sizes().empty()) {
      sizes[dim] *= mesh.size(static_cast<int64_t>(m));
      continue;
    }
    sizes[dim] = 0;
    for (int64_t size : placements[m].sizes()) sizes[dim] += size;
    is_known[dim] = true;
  }
  return sizes;
}

bool are_exact(const std::vector<Placement>& placements) {
  return std::ranges::none_of(placements, &Placement::is_chunk);
}

std::vector<int64_t> lengths_around(const Interval& own, int64_t extent, int64_t n, int64_t place) {
  std::vector<int64_t> lengths(n, own.length());
  const auto part = [](int64_t total, int64_t i, int64_t parts) { return total * (i + 1) / parts - total * i / parts; };
  for (int64_t i = 0; i < place; ++i) lengths[i] = part(own.begin, i, place);
  for (int64_t i = place + 1; i < n; ++i) lengths[i] = part(extent - own.end, i - place - 1, n - place - 1);
  return lengths;
}

Interval planned_interval(int64_t extent, int64_t n, int64_t place, int64_t length) {
  const int64_t begin = n > 1 ? std::max<int64_t>(extent - length, 0) * place / (n - 1) : 0;
  return {begin, begin + length};
}

std::vector<Placement> with_sizes_of_ranks(const at::Tensor& local, const DeviceMesh& mesh,
                                           std::vector<Placement> placements, c10::IntArrayRef sizes) {
  if (are_exact(placements) || !mesh.is_member()) return placements;
  const Group& group = *mesh.with_memory()->group();
  std::vector<Dims> all;
  Dims first;
  for (const Facts& facts : agree(group, "from_local", Facts(kind_of(local)).list(sizes).list(local.sizes()))) {
    FactReader reader(facts);
    const Dims whole = reader.list(), piece = reader.list();
    if (all.empty()) first = whole;
    SW_CHECK_VALUE(whole == first,
                   "[from_local] rank {} gives shape [{}], rank {} gives shape [{}]. Give the shape of the whole "
                   "tensor, the same on all ranks.",
                   group.ranks[0], fmt::join(first, ", "), group.ranks[all.size()], fmt::join(whole, ", "));
    SW_CHECK_VALUE(
        piece.size() == whole.size(),
        "[from_local] a local tensor of shape [{}] has another number of dims than the tensor of shape [{}]. {}",
        fmt::join(piece, ", "), fmt::join(whole, ", "), kGiveShape);
    all.push_back(piece);
  }
  for (Placement& each : placements) each = each.with_dim_from_zero(static_cast<int64_t>(sizes.size()));
  for (size_t m = 0; m < placements.size(); ++m) {
    if (!placements[m].is_chunk()) continue;
    const int64_t dim = placements[m].split_dim();
    if (dim < 0 || dim >= static_cast<int64_t>(sizes.size())) continue;  // Layout reports these
    if (mesh_dims_splitting(placements, dim).size() > 1) continue;       // shards of shards stay torch.chunk's
    const int64_t n = mesh.size(static_cast<int64_t>(m));
    if (!group.sends) {  // the other ranks' sizes are unknown
      const int64_t place = (*mesh.coord())[m], own = local.size(dim);
      if (own != chunk_sizes(sizes[dim], n)[place])
        placements[m] =
            placements[m].with_sizes(lengths_around(planned_interval(sizes[dim], n, place, own), sizes[dim], n, place));
      continue;
    }
    Dims lengths(n, -1);
    for (size_t i = 0; i < all.size(); ++i) {
      int64_t& length = lengths[(*mesh.grid().coord_of(group.ranks[i]))[m]];
      SW_CHECK_VALUE(length == -1 || length == all[i][dim],
                     "[from_local] rank {} gives a local tensor of shape [{}], but another rank with the same "
                     "coordinate on mesh dim {} gives {} indices in dim {}. {}",
                     group.ranks[i], fmt::join(all[i], ", "), m, length, dim, kGiveShape);
      length = all[i][dim];
    }
    SW_CHECK_VALUE(
        std::accumulate(lengths.begin(), lengths.end(), int64_t{0}) == sizes[dim],
        "[from_local] the ranks' local tensors have {} indices in dim {}, but the tensor of shape [{}] has {}. {}",
        fmt::join(lengths, " + "), dim, fmt::join(sizes, ", "), sizes[dim], kGiveShape);
    if (lengths != chunk_sizes(sizes[dim], n)) placements[m] = Placement::shard(dim, lengths);
  }
  return placements;
}

void check_pieces(const std::vector<at::Tensor>& pieces, const Spec& spec) {
  const auto boxes = spec.boxes();
  SW_CHECK_VALUE(pieces.size() == boxes.size(),
                 "[from_local] rank {} gives {} pieces, but {} has {} on this rank. Give one tensor per piece.",
                 spec.mesh()->rank(), pieces.size(), to_string(spec), boxes.size());
  for (size_t i = 0; i < boxes.size(); ++i) {
    check_piece(pieces[i], i, spec);
    SW_CHECK_VALUE(sizes_of(pieces[i]) == boxes[i].sizes,
                   "[from_local] rank {} gives a piece of shape [{}], but {} has {} on this rank. {}",
                   spec.mesh()->rank(), fmt::join(sizes_of(pieces[i]), ", "), to_string(spec), to_string(boxes[i]),
                   kGiveShape);
  }
}

void check_flat_part(const at::Tensor& flat, const Spec& spec) {
  check_piece(flat, 0, spec);
  SW_CHECK_VALUE(flat.sizes() == c10::IntArrayRef(*spec.flat_sizes()),
                 "[from_local] rank {} gives a piece of shape [{}], but {} has a part of shape [{}] on this rank{}. "
                 "Give that part, and shape= of the whole tensor.",
                 spec.mesh()->rank(), fmt::join(flat.sizes(), ", "), to_string(spec),
                 fmt::join(*spec.flat_sizes(), ", "),
                 spec.layout().joined_dim() ? "" : ": [elements of the flattened dims, *the other dims]");
  SW_CHECK_VALUE(spec.layout().joined_dim() || flat.is_contiguous(),
                 "[from_local] rank {} gives a piece of shape [{}] and strides [{}] for {}: a range is contiguous "
                 "memory. Call contiguous().",
                 spec.mesh()->rank(), fmt::join(flat.sizes(), ", "), fmt::join(flat.strides(), ", "), to_string(spec));
}

void check_ranks_agree(const at::Tensor& local, const Spec& spec) {
  if (!spec.is_member()) return;
  const Group& group = *spec.mesh()->with_memory()->group();  // perhaps not all ranks' pieces are on meta
  const std::vector<PieceFacts> facts = facts_of_all(group, local, spec);
  for (size_t i = 1; i < facts.size(); ++i) {
    const PieceFacts &first = facts[0], &other = facts[i];
    SW_CHECK_VALUE(first.dtype == other.dtype && first.sizes == other.sizes,
                   "[from_local] the pieces [{}] of rank {} and [{}] of rank {} belong to different tensors: {} [{}] "
                   "and {} [{}]. {}",
                   fmt::join(first.piece, ", "), group.ranks[0], fmt::join(other.piece, ", "), group.ranks[i],
                   c10::toString(first.dtype), fmt::join(first.sizes, ", "), c10::toString(other.dtype),
                   fmt::join(other.sizes, ", "), kGiveShape);
    const auto [on_meta, filled] = first.is_meta ? std::pair(size_t{0}, i) : std::pair(i, size_t{0});
    SW_CHECK_VALUE(first.is_meta == other.is_meta,
                   "[from_local] the piece of rank {} is on meta, but the piece of rank {} has values. Give values on "
                   "all ranks, or on none.",
                   group.ranks[on_meta], group.ranks[filled]);
    const auto [recorded, plain] = first.is_recorded ? std::pair(size_t{0}, i) : std::pair(i, size_t{0});
    SW_CHECK_VALUE(
        first.is_recorded == other.is_recorded,
        "[from_local] the piece of rank {} requires a gradient, but the piece of rank {} does not: one rank would wait "
        "for the other in the backward. Call requires_grad_() on the pieces of all ranks, or of none.",
        group.ranks[recorded], group.ranks[plain]);
  }
  const bool has_one_each = !spec.layout().has_listed_boxes();
  for (size_t i = 0; i < facts.size() && has_one_each; ++i) {
    if (!group.sends && static_cast<int64_t>(i) != group.index) continue;
    const Dims expected = spec.layout().local_sizes(group.ranks[i]);
    SW_CHECK_VALUE(facts[i].piece == expected,
                   "[from_local] rank {} gives a piece of shape [{}], but {} has shape [{}] on this rank. {}",
                   group.ranks[i], fmt::join(facts[i].piece, ", "), to_string(spec), fmt::join(expected, ", "),
                   kGiveShape);
  }
}

at::Tensor with_equal_replicas(at::Tensor local, const Spec& spec) {
  for (size_t m = 0; m < spec.placements().size(); ++m) {
    if (!spec.placements()[m].is_whole() || !spec.is_member() || spec.mesh()->size(static_cast<int64_t>(m)) == 1)
      continue;
    const Group& line = *spec.mesh()->group(static_cast<int64_t>(m));
    Dims root = *spec.mesh()->coord();
    root[m] = 0;
    local = local.detach().clone(at::MemoryFormat::Contiguous);
    broadcast(line, local, line.index_of(spec.mesh()->grid().rank_at(root)));
  }
  return local;
}

}  // namespace shardwise
