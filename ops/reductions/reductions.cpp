// ops/reductions/reductions.cpp: reductions over some dims or all.
#include "ops/families.h"
#include "ops/support/common_rules.h"
#include "ops/support/dense_dtypes.h"
#include "ops/support/derivative.h"
#include "ops/support/kernels.h"
#include "ops/support/own_operator.h"
#include "placements/placement_list.h"
#include "text/check.h"

#include <ATen/Functions.h>

namespace shardwise {
namespace {

/// For reductions whose results per shard do not combine: the reduced dims are gathered first.
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

/// For any() and all(): an empty list of dims reduces nothing; no list reduces all dims.
Rule reduction_of_listed_dims(Reduce reduce) {
  const Rule some = reduction(reduce);
  return Rule(some.text(),
              [some, none = pointwise()](const OpCall& call, Signature& signature) {
                const c10::IValue& dims = call.arg("dim");
                const bool is_empty = dims.isIntList() && dims.toIntVector().empty();
                signature = (is_empty ? none : some).signature(call);
              })
      .sampled();
}

c10::SymInt n_reduced(const at::Tensor& self, at::OptionalIntArrayRef dims) {
  if (!dims || dims->empty() || self.dim() == 0) return self.sym_numel();
  c10::SymInt n = 1;
  for (int64_t dim : *dims) n = n * self.sym_size(dim);
  return n;
}

/// The sum over all ranks, divided by the global count, which is right for uneven shards too. Its derivative divides the gradient before it is
/// expanded; torch's formula would divide a whole tensor on each rank.
at::Tensor mean_dim(const at::Tensor& self, at::OptionalIntArrayRef dims, bool keepdim,
                    std::optional<at::ScalarType> dtype) {
  const at::ScalarType to = dtype.value_or(self.scalar_type());
  SW_CHECK(at::isFloatingType(to) || at::isComplexType(to),
           "[aten::mean] the mean of {} cannot be {}. Pass a floating dtype=.", c10::toString(self.scalar_type()),
           c10::toString(to));
  // Half precision sums in float32, as torch does.
  const at::ScalarType summed_as = at::isReducedFloatingType(to) ? at::kFloat : to;
  return at::sum(self, dims, keepdim, summed_as).div_(n_reduced(self, dims)).to(to);
}

at::Tensor mean(const at::Tensor& self, std::optional<at::ScalarType> dtype) {
  return mean_dim(self, {}, false, dtype);
}

at::Tensor norm_of_dims(const at::Tensor& self, const std::optional<at::Scalar>& p, c10::IntArrayRef dims,
                        bool keepdim) {
  return at::linalg_vector_norm(self, p.value_or(2), dims, keepdim);
}

at::Tensor norm_of_dims_to(const at::Tensor& self, const std::optional<at::Scalar>& p, c10::IntArrayRef dims,
                           bool keepdim, at::ScalarType dtype) {
  return at::linalg_vector_norm(self, p.value_or(2), dims, keepdim, dtype);
}

// The trace: each shard sums its part of the global diagonal, whose offset in the shard follows from the shard's own.

at::Tensor diagonal_sum(const at::Tensor& self, int64_t offset) { return at::sum(self.diagonal(offset)); }

at::Tensor identity_like(const at::Tensor& self, int64_t offset) {
  at::Tensor result = at::zeros_like(self);
  result.diagonal(offset).fill_(1);
  return result;
}

void localize_diagonal(const LocalCall& local, std::vector<c10::IValue>& args) {
  const Dims& offsets = local.inputs[0].offsets;
  args[local.call.op.arg_index("offset")] = offsets.empty() ? int64_t{0} : offsets[0] - offsets[1];
}

at::Tensor call(const char* name, const at::Tensor& self) {
  return operator_of<decltype(diagonal_sum)>(name).call(self, 0);
}

at::Tensor trace_of(const at::Tensor& self) {
  TORCH_CHECK(self.dim() == 2, "trace: expected a matrix, but got tensor with dim ", self.dim());
  check_dtype(self, [](const at::Tensor& one) { at::trace(one); });
  return call("shardwise::diagonal_sum", self);
}

/// torch's derivative formula makes plain zeros.
at::Tensor differentiable_trace(const at::Tensor& self) {
  const at::Tensor result = below_derivatives([&] { return trace_of(self); });
  carry_tangent(self, result, [](const at::Tensor& tangent) { return differentiable_trace(tangent); });
  if (!self.requires_grad() || !c10::GradMode::is_enabled()) return result;
  return with_derivative(
      self, result, {}, "TraceBackward", [=, spec = spec_of(self)](const at::Tensor& grad, const variable_list&) {
        return grad * below_derivatives([&] {
                 return call("shardwise::identity_like",
                             empty(spec->sizes(), spec->mesh(), without_partial(spec->placements()), spec->dtype()));
               });
      });
}

}  // namespace

void register_reductions(RuleTable& table) {
  define_operator("diagonal_sum(Tensor self, int offset) -> Tensor", {&diagonal_sum});
  define_operator("identity_like(Tensor self, int offset) -> Tensor", {&identity_like});
  table.add({"aten::sum", "aten::sum.dim_IntList"}, reduction(Reduce::kSum).linear());
  table.keep_symbols({"aten::sum", "aten::sum.dim_IntList", "aten::amax", "aten::amin", "aten::all", "aten::all.dim",
                      "aten::any", "aten::any.dim"});
  table.keep_symbols({"aten::mean", "aten::mean.dim", "aten::argmax", "aten::argmin", "aten::max.dim", "aten::min.dim",
                      "aten::median.dim", "aten::nanmedian.dim", "aten::mode", "aten::kthvalue", "aten::logsumexp",
                      "aten::var.correction", "aten::std.correction", "aten::var_mean.correction",
                      "aten::std_mean.correction", "aten::linalg_vector_norm"});
  add_overloads(table, {"linalg__powsum"}, reduction(Reduce::kSum));
  table.add({"aten::nansum", "aten::count_nonzero", "aten::count_nonzero.dim_IntList"}, reduction(Reduce::kSum));
  // The maximum of a Partial(max) is the Partial(max) of each rank's maximum.
  table.add({"aten::amax", "aten::max"}, reduction(Reduce::kMax).passing({{Reduce::kMax, Reduce::kMax, {0}}}));
  table.add({"aten::amin", "aten::min"}, reduction(Reduce::kMin).passing({{Reduce::kMin, Reduce::kMin, {0}}}));
  table.add({"aten::any", "aten::any.dim"}, reduction(Reduce::kMax));
  table.add({"aten::all", "aten::all.dim"}, reduction(Reduce::kMin));
  table.add("aten::any.dims", reduction_of_listed_dims(Reduce::kMax));
  table.add("aten::all.dims", reduction_of_listed_dims(Reduce::kMin));
  table.add({"aten::prod", "aten::prod.dim_int"}, reduction(Reduce::kProduct));
  table.add({"aten::argmax", "aten::argmin", "aten::max.dim", "aten::min.dim", "aten::aminmax", "aten::median",
             "aten::nanmedian", "aten::median.dim", "aten::nanmedian.dim", "aten::mode", "aten::kthvalue",
             "aten::logsumexp", "aten::var.correction", "aten::std.correction", "aten::var_mean.correction",
             "aten::std_mean.correction", "aten::linalg_vector_norm"},
            whole_reduction());
  table.add("shardwise::diagonal_sum", Rule("ij->").linear().localized(localize_diagonal));
  table.add("shardwise::identity_like", Rule("ij->ij").localized(localize_diagonal));
  aten_kernels().impl("trace", &trace_of);
  aten_autograd_kernels().impl("trace", &differentiable_trace);
  add_composition("mean", &mean);
  add_composition("mean.dim", &mean_dim);
  aten_kernels().impl("norm.ScalarOpt_dim", &norm_of_dims);
  aten_kernels().impl("norm.ScalarOpt_dim_dtype", &norm_of_dims_to);
  add_torch_compositions({"norm.Scalar", "norm.ScalarOpt_dtype", "dist", "_foreach_powsum.Scalar"});
}

}  // namespace shardwise
