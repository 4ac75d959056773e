// ops/indexing/masks.cpp: nonzero, masked_select and masked_scatter. The result's size depends on values, so ranks
// outside the mesh may not call them.
//
// If one mesh dim shards a mask along dim 0, nonzero is sharded along the same mesh dim, by the count on each rank.
#include "ops/families.h"
#include "ops/indexing/index.h"
#include "ops/indexing/index_operand.h"
#include "ops/indexing/masked_rows.h"
#include "ops/support/kernels.h"
#include "ops/support/plain_self.h"
#include "runtime/api/dtensor.h"
#include "runtime/comm/comm_scope.h"
#include "runtime/comm/tracing.h"
#include "runtime/dispatch/gather_fallback.h"
#include "runtime/tensor/below_autograd.h"
#include "runtime/tensor/registrations.h"
#include "text/check.h"

#include <ATen/ExpandUtils.h>
#include <ATen/ops/masked_scatter.h>
#include <ATen/ops/nonzero.h>
#include <ATen/ops/where.h>

namespace shardwise {
namespace {

at::Tensor nonzero(const at::Tensor& self) {
  check_not_traced("aten::nonzero");
  const SpecPtr& spec = spec_of(self);
  const MeshPtr& mesh = spec->mesh();
  if (!mesh->is_member()) refuse_outside("aten::nonzero", *mesh);
  const BelowAutograd guard;
  const auto layouts = [&] { return to_string(*spec); };
  const CommScope scope("aten::nonzero", CommScope::Cause::kOperator, layouts);
  const auto sharding = only_row_shard(self);
  const at::Tensor source = sharding ? self : redistribute(self, Placements(mesh->ndim()));
  at::Tensor places = at::nonzero(maybe_dtensor(source)->shards()[0]);
  Placements placements(mesh->ndim());
  int64_t total = places.size(0);
  if (sharding) {
    places.select(1, 0).add_(spec->boxes()[0].offsets[0]);
    const Dims counts = counts_by_coord(self, *sharding, total);
    total = c10::sum_integers(counts);
    placements[*sharding] = Placement::shard(0, counts);
  }
  const Dims sizes{total, self.dim()};
  return from_pieces({places}, Spec::intern(mesh, sizes, std::move(placements), row_major_strides(sizes), at::kLong));
}

/// self and mask broadcast to their common shape, and the indices where the mask is true.
struct Masked {
  at::Tensor self;
  Indexed at;

  Masked(const char* op, const at::Tensor& of_self, const at::Tensor& of_mask) {
    SW_CHECK(of_mask.scalar_type() == at::kBool, "[{}] expected BoolTensor for mask, got {}.", op,
             c10::toString(of_mask.scalar_type()));
    const auto sizes = at::infer_size(of_self.sizes(), of_mask.sizes());
    self = of_self.expand(sizes);
    if (sizes.empty()) self = self.unsqueeze(0);
    at::Tensor mask = index_operand(op, of_mask, spec_of(of_self)->mesh()).expand(sizes);
    if (sizes.empty()) mask = mask.unsqueeze(0);
    const at::Tensor places = mask.nonzero();
    for (int64_t dim = 0; dim < mask.dim(); ++dim) {
      at.indices.push_back(places.select(1, dim));
      at.dims.push_back(dim);
    }
  }
};

at::Tensor masked_select(const at::Tensor& self, const at::Tensor& mask) {
  const Masked masked("aten::masked_select", self, mask);
  return look_up(masked.self, masked.at);
}

/// masked_scatter() for graphs, in which no size may depend on values: each element has the number of true elements before it.
at::Tensor with_masked_in_graph(const at::Tensor& self, const at::Tensor& mask, const at::Tensor& source) {
  const at::Tensor places = mask.flatten().cumsum(0).sub(1).clamp(0, source.numel() - 1);
  return at::where(mask, source.flatten().index_select(0, places).view(mask.sizes()), self).contiguous();
}

at::Tensor with_masked(const at::Tensor& self, const at::Tensor& mask, const at::Tensor& source) {
  SW_CHECK(self.scalar_type() == source.scalar_type(),
           "[aten::masked_scatter] expected self and source to have same dtypes but got {} and {}",
           c10::toString(self.scalar_type()), c10::toString(source.scalar_type()));
  if (is_tracing() && source.numel() > 0) {
    const auto sizes = at::infer_size(self.sizes(), mask.sizes());
    const at::Tensor places = index_operand("aten::masked_scatter", mask, spec_of(self)->mesh());
    return with_masked_in_graph(self.expand(sizes), places.expand(sizes), source);
  }
  const Masked masked("aten::masked_scatter", self, mask);
  const int64_t n = masked.at.indices[0].numel();
  SW_CHECK(source.numel() >= n,
           "[aten::masked_scatter] source has {} elements, fewer than the {} true elements of mask.", source.numel(),
           n);
  const at::Tensor result =
      put(masked.self, masked.at, source.reshape(-1).slice(0, 0, n), /*accumulate=*/false).contiguous();
  return self.dim() == 0 && mask.dim() == 0 ? result.squeeze(0) : result;
}

/// torch's formulas find the gradient of `source` by a selection, whose size depends on values.
at::Tensor differentiable_masked(c10::DispatchKeySet keys, const at::Tensor& self, const at::Tensor& mask,
                                 const at::Tensor& source) {
  return is_tracing() ? PlainSelf<&with_masked, true>::call(self, mask, source)
                      : at::_ops::masked_scatter::redispatch(formula_keys(keys), self, mask, source);
}
at::Tensor& write_differentiable_masked(c10::DispatchKeySet keys, at::Tensor& self, const at::Tensor& mask,
                                        const at::Tensor& source) {
  return is_tracing() ? self.copy_(at::masked_scatter(self, mask, source))
                      : at::_ops::masked_scatter_::redispatch(formula_keys(keys), self, mask, source);
}

}  // namespace

void register_masks(RuleTable& /*table*/) {
  aten_kernels().impl("nonzero", &nonzero);
  add_composition_with_plain_self<&masked_select>("masked_select");
  add_with_plain_self<&with_masked>("masked_scatter");
  add_with_plain_self<&CopiedBack<&with_masked>::write>("masked_scatter_");
  PlainSelf<&with_masked, true>::name = "masked_scatter";
  aten_autograd_kernels().impl("masked_scatter", &differentiable_masked);
  aten_autograd_kernels().impl("masked_scatter_", &write_differentiable_masked);
}

}  // namespace shardwise
