// ops/products/distances.cpp: distances between rows (cdist, pdist), and slices scaled down to a maximum norm (renorm).
#include "ops/families.h"
#include "ops/support/common_rules.h"
#include "ops/support/own_operator.h"
#include "ops/support/plain_self.h"

#include <ATen/Functions.h>
#include <c10/core/WrapDimMinimal.h>

#include <algorithm>

namespace shardwise {
namespace {

/// Operands: gradient, left, right, distances. The output, the gradient of the left operand, has the broadcast batch dims or, if there are no pairs,
/// the left operand's own.
void describe_cdist_backward(const OpCall& call, Signature& signature) {
  static const Rule pairs("…pr,…p_,…r_,…pr->…p_");
  signature = pairs.signature(call);
  if (std::ranges::none_of(signature.factors, [](const Factor& factor) { return factor.size == 0; })) return;
  for (Factor& factor : signature.factors) factor.is_whole = true;
  signature.outputs = {Axes(call.operands[1].sizes.size())};
}

/// Every row is compared with every other, so both dims are whole.
void describe_pdist(const OpCall& call, Signature& signature) {
  for (const Operand& operand : call.operands)
    add_whole_axes(operand.sizes, operand.sizes.size(), signature, signature.inputs.emplace_back());
  signature.outputs.push_back(Axes(call.outputs[0].sizes.size()));
}

// torch's operators have no meta kernels outside Python, so operators of our own give the shapes.

at::Tensor compute_pdist(const at::Tensor& self, double p) { return at::_pdist_forward(self.contiguous(), p); }

at::Tensor shape_of_pdist(const at::Tensor& self, double /*p*/) {
  return at::empty({self.size(0) * (self.size(0) - 1) / 2}, self.options());
}

at::Tensor pdist(const at::Tensor& self, double p) {
  static const auto op = operator_of<decltype(compute_pdist)>("shardwise::pdist");
  return op.call(self, p);
}

at::Tensor compute_pdist_backward(const at::Tensor& grad, const at::Tensor& self, double p, const at::Tensor& pdist) {
  return at::_pdist_backward(grad.contiguous(), self.contiguous(), p, pdist.contiguous());
}

at::Tensor shape_of_pdist_backward(const at::Tensor&, const at::Tensor& self, double, const at::Tensor&) {
  return at::empty_like(self);
}

at::Tensor pdist_backward(const at::Tensor& grad, const at::Tensor& self, double p, const at::Tensor& distances) {
  static const auto op = operator_of<decltype(compute_pdist_backward)>("shardwise::pdist_backward");
  return op.call(grad, self, p, distances);
}

/// Scales each slice along `dim` whose norm exceeds `max_norm` down to it; 1e-7 as in torch.
at::Tensor renormed(const at::Tensor& self, const at::Scalar& p, int64_t dim, const at::Scalar& max_norm) {
  TORCH_CHECK(self.dim() > 1, "renorm: input needs at least 2 dimensions, got ", self.dim(), " dimensions");
  TORCH_CHECK(p.toDouble() > 0, "renorm: non-positive-norm not supported");
  TORCH_CHECK(max_norm.toDouble() >= 0, "renorm: expected maxnorm to be >= 0 but got ", max_norm.toDouble());
  dim = c10::maybe_wrap_dim(dim, self.dim());
  Dims others;
  for (int64_t other = 0; other < self.dim(); ++other)
    if (other != dim) others.push_back(other);
  const at::Tensor norm = at::linalg_vector_norm(self, p, others, /*keepdim=*/true);
  const at::Tensor scale = at::where(norm > max_norm, (norm + 1e-7).reciprocal() * max_norm, at::ones_like(norm));
  return (self * scale.to(self.scalar_type())).contiguous();
}

}  // namespace

void register_distances(RuleTable& table) {
  define_operator("pdist(Tensor self, float p) -> Tensor", {&compute_pdist, &shape_of_pdist});
  define_operator("pdist_backward(Tensor grad, Tensor self, float p, Tensor pdist) -> Tensor",
                  {&compute_pdist_backward, &shape_of_pdist_backward});
  table.add("aten::_cdist_forward", "…p_,…r_->…pr");
  table.add("aten::_cdist_backward",
            Rule("…pr,…p_,…r_,…pr->…p_ {r: sum}", describe_cdist_backward).linear_in_first().sampled());
  table.add({"shardwise::pdist", "shardwise::pdist_backward"}, Rule("pdist", describe_pdist));
  aten_kernels().impl("_pdist_forward", &pdist);
  aten_kernels().impl("_pdist_backward", &pdist_backward);
  aten_kernels().impl("renorm", &renormed);
  aten_kernels().impl("renorm_", &CopiedBack<&renormed>::write);
}

}  // namespace shardwise
