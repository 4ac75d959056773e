#include "ops/support/dim_pieces.h"

#include "placements/placement_list.h"
#include "runtime/redistribute/execute.h"
#include "runtime/tensor/below_autograd.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <c10/core/WrapDimMinimal.h>

namespace shardwise {

Placements DimPieces::with_lengths(const std::vector<int64_t>& lengths) const {
  const Spec& spec = *spec_of(tensor);
  Placements result = spec.placements().vec();
  size_t n_pieces = 1;
  for (const int64_t m : mesh_dims_splitting(spec.placements(), dim)) {
    n_pieces *= spec.mesh()->size(m);
    // Each shard of the mesh dims up to this one contains the same number of final shards.
    std::vector<int64_t> rows(n_pieces);
    const size_t n_within = lengths.size() / n_pieces;
    for (size_t i = 0; i < lengths.size(); ++i) rows[i / n_within] += lengths[i];
    result[m] = Placement::shard(dim, rows);
  }
  return result;
}

Placements DimPieces::unsharded() const { return whole_along(spec_of(tensor)->placements(), dim); }

at::Tensor DimPieces::wrapped(const Shards& pieces, int64_t length, Placements placements, at::ScalarType dtype) const {
  for (const at::Tensor& piece : pieces)
    TORCH_INTERNAL_ASSERT(piece.scalar_type() == dtype, "a piece of ", piece.scalar_type(), " of a tensor of ", dtype);
  Dims sizes(spec_of(tensor)->sizes());
  if (!sizes.empty()) sizes[dim] = length;
  return wrap(Spec::intern(spec_of(tensor)->mesh(), sizes, std::move(placements), row_major_strides(sizes), dtype),
              pieces);
}

at::Tensor moved_to(const at::Tensor& tensor, Placements placements) {
  const SpecPtr& from = spec_of(tensor);
  const SpecPtr to = from->with_placements(std::move(placements));
  return to == from ? tensor : wrap(to, move(*maybe_dtensor(tensor), to));
}

std::vector<c10::SymInt> symbols_of(const at::Tensor& tensor) {
  const SymbolicSizes* const symbols = maybe_dtensor(tensor)->symbols();
  return symbols ? symbols->sizes : std::vector<c10::SymInt>();
}

Shards new_pieces(const Spec& spec, c10::SymIntArrayRef symbols, c10::Device device) {
  const auto options = at::TensorOptions().dtype(spec.dtype()).device(device);
  Shards pieces;
  for (const Box& box : spec.boxes())
    pieces.push_back(symbols.empty() ? at::empty(box.sizes, options)
                                     : at::empty_symint(with_symbols(spec, box.sizes, symbols), options));
  return pieces;
}

at::Tensor in_order_of(const at::Tensor& like, const at::Tensor& tensor) {
  if (tensor.strides() == dense_strides(like.sizes(), like.strides())) return tensor;
  const BelowAutograd guard;
  return at::empty_like(like, tensor.options()).copy_(tensor);
}

DimPieces pieces_along(const at::Tensor& tensor, int64_t dim, bool keeps_sums) {
  DimPieces result;
  result.dim = c10::maybe_wrap_dim(dim, tensor.dim());
  Placements placements = replicated_where(spec_of(tensor)->placements(), [&](const Placement& placement) {
    return placement.places_boxes() || (placement.terms() && !(keeps_sums && placement.is_linear()));
  });
  result.tensor = moved_to(tensor, placements);
  const Spec& spec = *spec_of(result.tensor);
  result.intervals = {{0, 1}};
  if (tensor.dim() == 0) return result;
  result.intervals = spec.layout().shard_intervals(result.dim);
  if (spec.is_member()) result.own = spec.layout().part_at(result.dim, *spec.mesh()->coord());
  return result;
}

}  // namespace shardwise
