// ops/reductions.cpp: reductions over some dims or all.
#include "ops/families.h"
#include "ops/kernels.h"

#include <ATen/ops/abs.h>
#include <ATen/ops/amax.h>
#include <ATen/ops/amin.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/sum.h>
#include <fmt/format.h>

#include <cmath>

namespace shardwise {
namespace {

/// For what does not combine from parts: the reduced dims are gathered first.
Rule whole_reduction() {
  return Rule("reduction of whole dims",
              [parts = reduction(Reduce::kSum)](const OpCall& call, Signature& signature) {
                signature = parts.signature(call);
                for (Factor& factor : signature.factors) factor.is_whole = true;
                for (const Axes& axes : signature.outputs)
                  for (const Axis& axis : axes)
                    if (axis.factor >= 0) signature.factors[axis.factor].is_whole = false;
              })
      .sampled();
}

int64_t n_reduced(const at::Tensor& self, at::OptionalIntArrayRef dims) {
  if (!dims || dims->empty() || self.dim() == 0) return self.numel();
  int64_t n = 1;
  for (int64_t dim : *dims) n *= self.size(dim);
  return n;
}

/// Half precision sums in float32, as torch does.
at::ScalarType sum_dtype(at::ScalarType dtype) { return at::isReducedFloatingType(dtype) ? at::kFloat : dtype; }

/// The sum over all ranks, divided by the global count: uneven cuts come out right.
at::Tensor mean_dim(const at::Tensor& self, at::OptionalIntArrayRef dims, bool keepdim,
                    std::optional<at::ScalarType> dtype) {
  const at::ScalarType to = dtype.value_or(self.scalar_type());
  TORCH_CHECK(at::isFloatingType(to) || at::isComplexType(to),
              fmt::format("[aten::mean] the mean of {} is no {}. Pass a floating dtype=.",
                          c10::toString(self.scalar_type()), c10::toString(to)));
  return at::sum(self, dims, keepdim, sum_dtype(to)).div_(n_reduced(self, dims)).to(to);
}

at::Tensor mean(const at::Tensor& self, std::optional<at::ScalarType> dtype) {
  return mean_dim(self, {}, false, dtype);
}

/// From sums of powers, or from largest and smallest.
at::Tensor vector_norm(const at::Tensor& self, const at::Scalar& ord, at::OptionalIntArrayRef dims, bool keepdim,
                       std::optional<at::ScalarType> dtype) {
  const double p = ord.toDouble();
  const at::Tensor input = dtype ? self.to(*dtype) : self;
  const at::ScalarType to = at::toRealValueType(input.scalar_type());
  const at::ScalarType wide = sum_dtype(to);
  TORCH_CHECK(at::isFloatingType(to),
              fmt::format("[aten::linalg_vector_norm] the norm of {} is not defined. Pass a floating dtype=.",
                          c10::toString(input.scalar_type())));
  const at::Tensor sizes = at::abs(input);
  if (p == INFINITY) return at::amax(sizes, dims.value_or(at::IntArrayRef()), keepdim);
  if (p == -INFINITY) return at::amin(sizes, dims.value_or(at::IntArrayRef()), keepdim);
  if (p == 0) return at::sum(sizes.ne(0), dims, keepdim, wide).to(to);
  if (p == 1) return at::sum(sizes, dims, keepdim, wide).to(to);
  return at::sum(sizes.to(wide).pow(p), dims, keepdim).pow(1 / p).to(to);
}

}  // namespace

void register_reductions(RuleTable& table) {
  table.add({"aten::sum", "aten::sum.dim_IntList"}, reduction(Reduce::kSum).linear());
  table.add({"aten::nansum", "aten::count_nonzero.dim_IntList"}, reduction(Reduce::kSum));
  table.add({"aten::amax", "aten::max", "aten::any", "aten::any.dim"}, reduction(Reduce::kMax));
  table.add({"aten::amin", "aten::min", "aten::all", "aten::all.dim"}, reduction(Reduce::kMin));
  table.add({"aten::prod", "aten::prod.dim_int"}, reduction(Reduce::kProduct));
  table.add({"aten::argmax", "aten::argmin", "aten::max.dim", "aten::min.dim", "aten::aminmax", "aten::median.dim",
             "aten::nanmedian.dim", "aten::mode", "aten::kthvalue", "aten::logsumexp", "aten::var.correction",
             "aten::std.correction", "aten::var_mean.correction", "aten::std_mean.correction"},
            whole_reduction());
  aten_kernels().impl("mean", &mean);
  aten_kernels().impl("mean.dim", &mean_dim);
  aten_kernels().impl("linalg_vector_norm", &vector_norm);
}

}  // namespace shardwise
