// ops/reductions/softmax.cpp: softmax and log_softmax. A sharded dim stays sharded: the ranks all-reduce maxima and sums, which have
// extent 1 along it (as Online normalizer calculation for softmax, 2018, combines parts).
#include "ops/families.h"
#include "ops/support/by_rule.h"
#include "ops/support/kernels.h"

#include <ATen/Functions.h>

#include <limits>

namespace shardwise {
namespace {

constexpr double kMinusInfinity = -std::numeric_limits<double>::infinity();

at::Tensor below_largest(const at::Tensor& self, int64_t dim) { return self - at::amax(self, dim, /*keepdim=*/true); }

at::Tensor total(const at::Tensor& self, int64_t dim) { return at::sum(self, dim, /*keepdim=*/true); }

/// The values to compute with: contiguous, because torch's kernels give contiguous results.
at::Tensor own_values(const at::Tensor& self) { return widened(reduced(self)).contiguous(); }

at::ScalarType result_type(const at::Tensor& self, bool half_to_float) {
  return half_to_float ? at::kFloat : self.scalar_type();
}

at::Tensor softmax_of(const at::Tensor& self, int64_t dim, bool half_to_float) {
  static const ByRule whole("aten::_softmax");
  if (!is_sharded_along(self, dim)) return whole(self, dim, half_to_float);
  at::Tensor parts = below_largest(own_values(self), dim).exp_();
  return parts.div_(total(parts, dim)).to(result_type(self, half_to_float));
}

at::Tensor log_softmax_of(const at::Tensor& self, int64_t dim, bool half_to_float) {
  static const ByRule whole("aten::_log_softmax");
  if (!is_sharded_along(self, dim)) return whole(self, dim, half_to_float);
  at::Tensor shifted = below_largest(own_values(self), dim);
  return shifted.sub_(total(shifted.exp(), dim).log()).to(result_type(self, half_to_float));
}

/// Zeros where all values along `dim` are minus infinity.
at::Tensor safe_softmax_of(const at::Tensor& self, int64_t dim, std::optional<at::ScalarType> dtype) {
  static const ByRule whole("aten::_safe_softmax");
  if (!is_sharded_along(self, dim)) return whole(self, dim, dtype);
  const at::Tensor own = reduced(self);
  return at::softmax(own, dim, dtype).masked_fill(own.eq(kMinusInfinity).all(dim, /*keepdim=*/true), 0);
}

at::Tensor softmax_backward(const at::Tensor& grad, const at::Tensor& output, int64_t dim, at::ScalarType input_dtype) {
  static const ByRule whole("aten::_softmax_backward_data");
  if (!is_sharded_along(output, dim)) return whole(grad, output, dim, input_dtype);
  const at::Tensor values = own_values(output), weighted = own_values(grad) * values;
  return at::addcmul(weighted, values, total(weighted, dim), -1).to(input_dtype);
}

at::Tensor log_softmax_backward(const at::Tensor& grad, const at::Tensor& output, int64_t dim,
                                at::ScalarType input_dtype) {
  static const ByRule whole("aten::_log_softmax_backward_data");
  if (!is_sharded_along(output, dim)) return whole(grad, output, dim, input_dtype);
  const at::Tensor grads = own_values(grad);
  return at::addcmul(grads, own_values(output).exp(), total(grads, dim), -1).to(input_dtype);
}

}  // namespace

void register_softmax(RuleTable& table) {
  table.add({"aten::_softmax", "aten::_log_softmax", "aten::_safe_softmax"}, pointwise().whole("dim").sampled());
  table.add({"aten::_softmax_backward_data", "aten::_log_softmax_backward_data"},
            pointwise().linear_in_first().whole("dim").sampled());
  table.keep_symbols(
      {"aten::_softmax", "aten::_softmax_backward_data", "aten::_log_softmax", "aten::_log_softmax_backward_data"});
  aten_kernels().impl("_softmax", &softmax_of);
  aten_kernels().impl("_log_softmax", &log_softmax_of);
  aten_kernels().impl("_safe_softmax", &safe_softmax_of);
  aten_kernels().impl("_softmax_backward_data", &softmax_backward);
  aten_kernels().impl("_log_softmax_backward_data", &log_softmax_backward);
}

}  // namespace shardwise
