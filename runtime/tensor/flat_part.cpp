#include "runtime/tensor/flat_part.h"

#include "runtime/tensor/below_autograd.h"
#include "runtime/tensor/traced_pieces.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty_strided.h>

#include <algorithm>
#include <optional>

namespace shardwise {
namespace {

/// True if `piece` has a storage and an offset in it.
bool has_place(const at::Tensor& piece) {
  return piece.layout() == c10::kStrided && piece.unsafeGetTensorImpl()->has_storage();
}

bool has_elements(const at::Tensor& piece) { return piece.numel() > 0; }

/// How far in memory the next piece begins behind `piece`.
int64_t length_in_memory(const at::Tensor& piece, std::optional<int64_t> joined_dim) {
  return joined_dim ? piece.size(*joined_dim) * piece.stride(*joined_dim) : piece.numel();
}

bool follow_each_other(const Shards& pieces, std::optional<int64_t> joined_dim) {
  const at::Tensor* before = nullptr;
  for (const at::Tensor& piece : pieces) {
    if (!has_elements(piece)) continue;
    if (!joined_dim && !piece.is_contiguous()) return false;
    if (before && !(piece.storage().is_alias_of(before->storage()) &&
                    piece.storage_offset() == before->storage_offset() + length_in_memory(*before, joined_dim) &&
                    (!joined_dim || piece.strides() == before->strides()) && piece.is_conj() == before->is_conj() &&
                    piece.is_neg() == before->is_neg()))
      return false;
    before = &piece;
  }
  return true;
}

}  // namespace

Shards pieces_of(const Spec& spec, const at::Tensor& flat) {
  const BelowAutograd guard;
  const std::optional<int64_t> joined_dim = spec.layout().joined_dim();
  Shards pieces;
  if (joined_dim && is_traced(Shards{flat})) {  // a graph knows narrow and cat, but not which tensors share memory
    int64_t begin = 0;
    for (const Box& box : spec.boxes()) {
      pieces.push_back(flat.narrow(*joined_dim, begin, box.sizes[*joined_dim]));
      begin += box.sizes[*joined_dim];
    }
    return pieces;
  }
  int64_t offset = flat.storage_offset();
  for (const Box& box : spec.boxes()) {
    pieces.push_back(flat.as_strided(box.sizes, joined_dim ? flat.strides() : row_major_strides(box.sizes), offset));
    offset += length_in_memory(pieces.back(), joined_dim);
  }
  return pieces;
}

Shards joined(const Spec& spec, Shards pieces) {
  if (spec.layout().joined_dim() && is_traced(pieces)) return pieces;
  if (!std::ranges::all_of(pieces, has_place) || follow_each_other(pieces, spec.layout().joined_dim())) return pieces;
  const BelowAutograd guard;
  Shards views = pieces_of(spec, empty_flat_part(spec, pieces[0].options()));
  for (size_t i = 0; i < views.size(); ++i) views[i].copy_(pieces[i]);
  return views;
}

at::Tensor flat_part(const Spec& spec, const Shards& pieces) {
  const BelowAutograd guard;
  const std::optional<int64_t> joined_dim = spec.layout().joined_dim();
  if (joined_dim && !pieces.empty() && is_traced(pieces))
    return pieces.size() == 1 ? pieces[0] : at::cat(at::TensorList(pieces.data(), pieces.size()), *joined_dim);
  const auto first = std::ranges::find_if(pieces, has_elements);
  if (first == pieces.end())
    return empty_flat_part(spec, pieces.empty() ? at::TensorOptions().dtype(spec.dtype()).device(spec.mesh()->device())
                                                : pieces[0].options());
  const Dims& sizes = *spec.flat_sizes();
  return first->as_strided(sizes, joined_dim ? first->strides() : row_major_strides(sizes), first->storage_offset());
}

at::Tensor empty_flat_part(const Spec& spec, const at::TensorOptions& options) {
  const Dims& sizes = *spec.flat_sizes();
  return at::empty_strided(
      sizes, spec.layout().joined_dim() ? dense_strides(sizes, spec.strides()) : row_major_strides(sizes), options);
}

}  // namespace shardwise
