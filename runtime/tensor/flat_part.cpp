#include "runtime/tensor/flat_part.h"

#include "runtime/tensor/below_autograd.h"

#include <ATen/ops/empty.h>

#include <algorithm>

namespace shardwise {
namespace {

/// True if `piece` has a storage and an offset in it.
bool has_place(const at::Tensor& piece) {
  return piece.layout() == c10::kStrided && piece.unsafeGetTensorImpl()->has_storage();
}

bool has_elements(const at::Tensor& piece) { return piece.numel() > 0; }

bool follow_each_other(const Shards& pieces) {
  const at::Tensor* before = nullptr;
  for (const at::Tensor& piece : pieces) {
    if (!has_elements(piece)) continue;
    if (!piece.is_contiguous()) return false;
    if (before && !(piece.storage().is_alias_of(before->storage()) &&
                    piece.storage_offset() == before->storage_offset() + before->numel() &&
                    piece.is_conj() == before->is_conj() && piece.is_neg() == before->is_neg()))
      return false;
    before = &piece;
  }
  return true;
}

}  // namespace

Shards pieces_of(const Spec& spec, const at::Tensor& flat) {
  const BelowAutograd guard;
  Shards pieces;
  int64_t offset = flat.storage_offset();
  for (const Box& box : spec.boxes()) {
    pieces.push_back(flat.as_strided(box.sizes, row_major_strides(box.sizes), offset));
    offset += box.numel();
  }
  return pieces;
}

Shards joined(const Spec& spec, Shards pieces) {
  if (!std::ranges::all_of(pieces, has_place) || follow_each_other(pieces)) return pieces;
  const BelowAutograd guard;
  Shards views = pieces_of(spec, at::empty(*spec.flat_sizes(), pieces[0].options()));
  for (size_t i = 0; i < views.size(); ++i) views[i].copy_(pieces[i]);
  return views;
}

at::Tensor flat_part(const Spec& spec, const Shards& pieces) {
  const BelowAutograd guard;
  const Dims& sizes = *spec.flat_sizes();
  const auto first = std::ranges::find_if(pieces, has_elements);
  if (first != pieces.end()) return first->as_strided(sizes, row_major_strides(sizes), first->storage_offset());
  return at::empty(sizes, pieces.empty() ? at::TensorOptions().dtype(spec.dtype()).device(spec.mesh()->device())
                                         : pieces[0].options());
}

}  // namespace shardwise
