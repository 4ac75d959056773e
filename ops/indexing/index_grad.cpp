#include "ops/indexing/index_grad.h"

#include "placements/partial.h"
#include "runtime/api/dtensor.h"
#include "runtime/tensor/below_autograd.h"

#include <ATen/ops/zeros.h>

#include <algorithm>

namespace shardwise {
namespace {

bool shards(c10::ArrayRef<Placement> placements, int64_t dim) {
  return std::ranges::any_of(placements, [dim](const Placement& placement) { return placement.is_shard(dim); });
}

}  // namespace

at::Tensor zeros_for_grad(const Spec& source, const at::Tensor& grad, c10::ArrayRef<int64_t> of_source) {
  Placements placements = without_partial(source.placements());
  const c10::ArrayRef<Placement> of_grad = spec_of(grad)->placements();
  for (size_t m = 0; m < placements.size(); ++m) {
    if (placements[m].in_pieces())
      placements[m] = source.layout().enumerated() ? Placement::shard(0) : Placement::replicate();
    if (!placements[m].is_replicate()) continue;
    if (of_grad[m].is_linear_partial()) placements[m] = of_grad[m];
    if (!of_grad[m].is_shard()) continue;
    const int64_t dim = of_source[of_grad[m].dim()];
    if (dim < 0)
      placements[m] = Placement::partial();
    else if (!shards(placements, dim) && !shards(of_grad.slice(0, m), of_grad[m].dim()))
      placements[m] = of_grad[m].with_dim(dim);
  }
  auto spec = Spec::intern(source.mesh(), source.sizes(), std::move(placements), row_major_strides(source.sizes()),
                           grad.scalar_type());
  const BelowAutograd guard;
  Shards pieces;
  for (const Box& box : spec->boxes())
    pieces.push_back(at::zeros(box.sizes, at::TensorOptions().dtype(spec->dtype()).device(grad.device())));
  return wrap(std::move(spec), std::move(pieces));
}

at::Tensor in_pieces_of(const Spec& source, const at::Tensor& grad) {
  return source.layout().in_pieces() ? redistribute(grad, source.placements().vec()) : grad;
}

}  // namespace shardwise
