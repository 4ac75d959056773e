#include "ops/indexing/index_grad.h"

#include "ops/support/dim_pieces.h"
#include "placements/placement_list.h"
#include "runtime/api/dtensor.h"
#include "runtime/tensor/below_autograd.h"

namespace shardwise {
at::Tensor zeros_for_grad(const Spec& source, const at::Tensor& grad, c10::ArrayRef<int64_t> of_source,
                          c10::SymIntArrayRef symbols) {
  Placements placements = without_partial(source.placements());
  const c10::ArrayRef<Placement> of_grad = spec_of(grad)->placements();
  for (size_t m = 0; m < placements.size(); ++m) {
    if (placements[m].places_boxes())
      placements[m] = source.layout().enumerated() ? Placement::shard(0) : Placement::replicate();
    if (!placements[m].is_whole()) continue;
    if (of_grad[m].terms() && of_grad[m].is_linear()) placements[m] = of_grad[m];
    const int64_t dim_of_grad = of_grad[m].split_dim();
    if (dim_of_grad < 0) continue;
    const int64_t dim = of_source[dim_of_grad];
    if (dim < 0)
      placements[m] = Placement::partial();
    else if (!splits(placements, dim) && !splits(of_grad.slice(0, m), dim_of_grad))
      placements[m] = of_grad[m].with_dim(dim);
  }
  auto spec = Spec::intern(source.mesh(), source.sizes(), std::move(placements), row_major_strides(source.sizes()),
                           grad.scalar_type());
  const BelowAutograd guard;
  Shards pieces = new_pieces(*spec, symbols, grad.device());
  for (const at::Tensor& piece : pieces) piece.zero_();
  return wrap(std::move(spec), std::move(pieces));
}

at::Tensor in_pieces_of(const Spec& source, const at::Tensor& grad) {
  return source.layout().has_one_box_each() ? grad : redistribute(grad, source.placements().vec());
}

}  // namespace shardwise
