// ops/indexing/quantile.cpp: quantile and nanquantile. torch 2.14 and newer read the tensor's memory in their composition, which a DTensor does not
// have.
#include "ops/families.h"
#include "ops/support/plain_self.h"
#include "runtime/comm/tracing.h"

#include <ATen/Functions.h>
#include <ATen/WrapDimUtils.h>

namespace shardwise {
namespace {

using Dim = std::optional<int64_t>;

/// Throws the dense operator's errors for these arguments. In a traced program gather() reports values of `q` out of range.
void check(const at::Tensor& self, const at::Tensor& q, Dim dim, bool keepdim, std::string_view interpolation) {
  const auto without_memory = [](const at::Tensor& tensor) {
    return at::empty(tensor.sizes(), tensor.options().device(at::kMeta));
  };
  at::quantile(without_memory(self), without_memory(q), dim, keepdim, interpolation);
  if (q.is_cpu() && !is_tracing())
    TORCH_CHECK(q.ge(0).logical_and(q.le(1)).all().item<bool>(), "quantile() q values must be in the range [0, 1]");
}

/// The positions of the quantiles among the sorted values of each lane, [..., q or 1]. NaNs are sorted last, so without `skips_nans` the quantile of
/// a lane with a NaN is its last value, NaN.
template <bool skips_nans>
at::Tensor positions(const at::Tensor& sorted, const at::Tensor& q) {
  if constexpr (skips_nans) {
    const at::Tensor last = sorted.isnan().logical_not().sum(-1, /*keepdim=*/true).sub(1).clamp_min(0);
    return last.to(sorted.scalar_type()).mul(q);
  }
  const int64_t last = sorted.size(-1) - 1;
  const at::Tensor has_nan = sorted.narrow(-1, last, 1).isnan();
  return at::where(has_nan, at::scalar_tensor(last, q.options()), q.mul(last));
}

/// The two operands; a plain one becomes a replica. Throws: as check_plain().
std::pair<at::Tensor, at::Tensor> distributed(const char* op, const at::Tensor& self, const at::Tensor& q) {
  MeshPtr mesh;
  find_mesh(self, mesh);
  find_mesh(q, mesh);
  const auto replica = [&](const at::Tensor& operand, size_t arg) {
    return is_dtensor(operand) ? operand : replica_of_plain(op, operand, mesh, /*keeps_history=*/true, arg);
  };
  return {replica(self, 0), replica(q, 1)};
}

template <bool skips_nans>
at::Tensor quantile(const at::Tensor& given, const at::Tensor& given_q, Dim dim, bool keepdim,
                    std::string_view interpolation) {
  const auto [self, q] = distributed(skips_nans ? "nanquantile" : "quantile", given, given_q);
  check(self, q, dim, keepdim, interpolation);
  const bool is_lane = dim && self.dim() > 0;
  const int64_t lane = is_lane ? at::maybe_wrap_dim(*dim, self.dim()) : 0;
  const at::Tensor sorted = std::get<0>((is_lane ? self.movedim(lane, -1) : self.flatten()).sort(-1));

  at::Tensor position = positions<skips_nans>(sorted, q);
  if (interpolation == "lower") position = position.floor();
  if (interpolation == "higher") position = position.ceil();
  if (interpolation == "nearest") position = position.round();
  const at::Tensor below = position.floor();
  at::Tensor values = sorted.gather(-1, below.to(at::kLong));
  const bool is_midpoint = interpolation == "midpoint";
  if (is_midpoint || interpolation == "linear") {
    const at::Tensor next = sorted.gather(-1, position.ceil().to(at::kLong));
    values = is_midpoint ? values.lerp(next, 0.5) : values.lerp(next, position - below);
  }

  const int64_t n_before = q.dim();  // the dim of several quantiles comes first
  values = n_before == 0 ? values.squeeze(-1) : values.movedim(-1, 0);
  if (keepdim && is_lane) return values.unsqueeze(lane + n_before);
  for (int64_t i = 0; keepdim && i < self.dim(); ++i) values = values.unsqueeze(-1);
  return values;
}

template <bool skips_nans>
at::Tensor quantile_of_number(const at::Tensor& self, double q, Dim dim, bool keepdim, std::string_view interpolation) {
  TORCH_CHECK(q >= 0 && q <= 1, "quantile() q must be in the range [0, 1] but got ", q);
  const at::Tensor number = at::scalar_tensor(q, at::TensorOptions().dtype(self.dtype()).device(self.device()));
  return quantile<skips_nans>(self, number, dim, keepdim, interpolation);
}

}  // namespace

void register_quantile(RuleTable& /*table*/) {
  add_composition("quantile", &quantile<false>);
  add_composition("quantile.scalar", &quantile_of_number<false>);
  add_composition("nanquantile", &quantile<true>);
  add_composition("nanquantile.scalar", &quantile_of_number<true>);
}

}  // namespace shardwise
