// ops/reductions/var_argmax.cpp: reductions along sharded dims that combine a few numbers per shard: variances, argmax
// and argmin, logsumexp, norms, complex products. The tensor does not move.
//
// Each rank reduces its shard to one entry. The entries of [5, 4] as Shard(0) on 3 ranks are [3, 4] as Shard(0), and
// torch's reductions combine these.
#include "ops/families.h"
#include "ops/support/by_rule.h"
#include "ops/support/derivative.h"
#include "ops/support/kernels.h"
#include "ops/support/own_operator.h"
#include "placements/placement_list.h"
#include "runtime/api/dtensor.h"
#include "runtime/comm/reduce_dtype.h"
#include "runtime/comm/tracing.h"
#include "runtime/rules/propagate.h"
#include "runtime/tensor/registrations.h"
#include "text/check.h"

#include <ATen/Functions.h>
#include <ATen/OpMathType.h>
#include <ATen/WrapDimUtilsMulti.h>
#include <c10/core/WrapDimMinimal.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <set>
#include <tuple>
#include <utility>

namespace shardwise {
namespace {

constexpr int64_t kNowhere = std::numeric_limits<int64_t>::max();

/// A reduced dim becomes one entry per shard, one entry where it is not sharded.
std::optional<Propagation> place(const OpCall& call) {
  const Spec& spec = *call.operands[0].spec;
  const auto dims = call.arg("dim").toIntVector();
  Propagation result;
  const SpecPtr input = spec.layout().has_one_box_each() ? spec.reduced() : spec.replicated();
  result.inputs.push_back(input.get() == &spec ? SpecPtr() : input);

  Dims sizes(spec.sizes());
  for (int64_t dim : dims) sizes[dim] = 1;
  Placements placements = input->placements().vec();
  for (int64_t dim : dims)
    for (const int64_t m : mesh_dims_splitting(input->placements(), dim)) {
      sizes[dim] *= spec.mesh()->size(m);
      placements[m] = Placement::shard(dim);
    }
  for (const DenseOutput& output : call.outputs)
    result.outputs.push_back(Spec::intern(spec.mesh(), sizes, placements, row_major_strides(sizes), output.dtype));
  return result;
}

void localize_offsets(const LocalCall& local, std::vector<c10::IValue>& args) {
  if (!local.call.op.handle.schema().argumentIndexWithName("offsets")) return;
  const Box& box = local.inputs[0];
  args[local.call.op.arg_index("offsets")] = std::vector<int64_t>(box.offsets.begin(), box.offsets.end());
}

Dims one_entry(const at::Tensor& self, c10::IntArrayRef dims) {
  Dims sizes(self.sizes());
  for (int64_t dim : dims) sizes[dim] = 1;
  return sizes;
}

at::Tensor filled_entry(const at::Tensor& self, c10::IntArrayRef dims, double value, const at::TensorOptions& options) {
  std::vector<c10::SymInt> sizes = self.sym_sizes().vec();
  for (int64_t dim : dims) sizes[dim] = 1;
  return at::full_symint(sizes, value, options);
}

// Computations of each rank on its shard.

using Moments = std::tuple<at::Tensor, at::Tensor, at::Tensor>;

/// Entries are float64 for any dtype: they are few, and the combination subtracts them.
at::TensorOptions exact(const at::Tensor& self, bool is_real) {
  return self.options().dtype(self.is_complex() && !is_real ? at::kComplexDouble : at::kDouble);
}

/// Count, mean, and sum of squared deviations from it: the corrected two-pass algorithm (Algorithms for computing the sample variance, 1983), which
/// torch's var_mean() is several times slower than.
Moments moments(const at::Tensor& self, c10::IntArrayRef dims) {
  const at::Tensor wide = widened(self);
  const Dims sizes = one_entry(self, dims);
  int64_t n = 1;
  for (int64_t dim : dims) n *= self.size(dim);
  const auto real = exact(self, true), any = exact(self, false);
  if (n == 0 || self.is_meta()) return {at::zeros(sizes, real), at::zeros(sizes, any), at::zeros(sizes, real)};
  const at::Tensor mean = at::mean(wide, dims, /*keepdim=*/true);
  const at::Tensor apart = wide - mean;
  const at::Tensor error = at::mean(apart, dims, /*keepdim=*/true).to(any.dtype());
  const at::Tensor squares = apart.is_complex() ? apart.abs().square_() : apart.square_();
  return {at::full(sizes, n, real), mean.to(any.dtype()).add_(error),
          at::sum(squares, dims, /*keepdim=*/true).to(at::kDouble).sub_(error.abs().square_().mul_(n))};
}

/// The best value, and its global index over the reduced dims in row-major order.
std::tuple<at::Tensor, at::Tensor> best(const at::Tensor& self, c10::IntArrayRef dims, bool largest,
                                        c10::IntArrayRef offsets, c10::IntArrayRef global_sizes) {
  const Dims sizes = one_entry(self, dims);
  const auto places = self.options().dtype(at::kLong);
  bool is_empty = false;
  for (int64_t dim : dims) is_empty |= self.size(dim) == 0;
  if (is_empty)
    return {at::full(sizes, identity_of(largest ? Reduce::kMax : Reduce::kMin, self.scalar_type()), self.options()),
            at::full(sizes, kNowhere, places)};

  Dims last(dims.size());
  std::iota(last.begin(), last.end(), self.dim() - static_cast<int64_t>(dims.size()));
  const at::Tensor rows = self.movedim(dims, last).flatten(last[0], -1);
  auto [values, index] = largest ? rows.max(-1) : rows.min(-1);
  if (dims.size() == 1) return {values.reshape(sizes), index.add_(offsets[dims[0]]).reshape(sizes)};
  at::Tensor place = at::zeros_like(index);
  at::Tensor rest = index;
  int64_t step = 1;
  for (size_t i = dims.size(); i-- > 0;) {
    const int64_t dim = dims[i], length = self.size(dim);
    place.add_(rest.remainder(length).add_(offsets[dim]).mul_(step));
    rest = rest.div(length, "floor");
    step *= global_sizes[dim];
  }
  return {values.reshape(sizes), place.reshape(sizes)};
}

at::Tensor log_of_sum(const at::Tensor& self, c10::IntArrayRef dims) {
  if (self.sym_numel() == 0 || self.is_meta()) return filled_entry(self, dims, -INFINITY, self.options());
  return at::logsumexp(self, dims, /*keepdim=*/true);
}

at::Tensor norm(const at::Tensor& self, c10::IntArrayRef dims, double ord) {
  const auto options = self.options().dtype(at::toRealValueType(at::toOpMathType(self.scalar_type())));
  if (self.sym_numel() == 0 || self.is_meta()) return filled_entry(self, dims, ord < 0 ? INFINITY : 0, options);
  return at::linalg_vector_norm(widened(self), ord, dims, /*keepdim=*/true);
}

at::Tensor product(const at::Tensor& self, c10::IntArrayRef dims) {
  at::Tensor result = self;
  for (int64_t dim : dims) result = at::prod(result, dim, /*keepdim=*/true);
  return result;
}

// Combination of the entries.

/// Throws: torch's errors for a dim that does not exist or is given twice, which its kernels throw only if there are elements.
std::vector<int64_t> dims_of(const at::Tensor& self, at::OptionalIntArrayRef dims) {
  std::vector<int64_t> result;
  if (dims) at::dim_list_to_bitset(*dims, self.dim());
  if (dims)
    for (int64_t dim : *dims) result.push_back(c10::maybe_wrap_dim(dim, self.dim()));
  if (result.empty()) {
    result.resize(self.dim());
    std::iota(result.begin(), result.end(), 0);
  }
  return result;
}

/// Removes the reduced dims, of extent 1, unless they are kept.
at::Tensor finished(const at::Tensor& result, const std::vector<int64_t>& dims, bool keepdim) {
  if (keepdim) return result;
  return static_cast<int64_t>(dims.size()) == result.dim() ? result.reshape({}) : result.squeeze(dims);
}

struct Spread {
  at::Tensor variance, mean;
};

/// The number of shards along `dims`. Pre: `spec` is not in pieces.
int64_t n_shards(const Spec& spec, const std::vector<int64_t>& dims) {
  int64_t result = 1;
  for (int64_t dim : dims) result *= spec.layout().n_parts(dim);
  return result;
}

/// A tensor [n] of float64. In a traced program operators of the graph make it: memory that a tracer makes takes no values.
at::Tensor row_of(const std::vector<double>& numbers) {
  if (!is_tracing()) return at::tensor(numbers, at::kDouble);
  std::vector<at::Tensor> row;
  for (const double number : numbers) row.push_back(at::scalar_tensor(number, at::kDouble));
  return at::stack(row);
}

/// Elements per entry, from the layout, so that every rank knows them.
at::Tensor counts_of(const Spec& spec, const std::vector<int64_t>& dims) {
  at::Tensor counts = at::ones(Dims(spec.dim(), 1), at::kDouble);
  for (const int64_t dim : dims) {
    std::vector<double> lengths;
    for (const Interval interval : spec.layout().shard_intervals(dim)) lengths.push_back(double(interval.length()));
    Dims shape(spec.dim(), 1);
    shape[dim] = static_cast<int64_t>(lengths.size());
    counts = counts * row_of(lengths).view(shape);
  }
  return replica_of(counts.to(spec.mesh()->device()), spec.mesh());
}

/// True if the entries of all shards are few bytes: one gather of them is faster than two sums over the ranks.
bool are_gathered(const at::Tensor& self, const std::vector<int64_t>& dims, const at::Tensor& means) {
  const Spec& spec = *spec_of(self);
  if (!spec.layout().has_one_box_each()) return false;
  const int64_t n = n_shards(spec, dims);
  return means.numel() / n * (n - 1) * 2 * static_cast<int64_t>(means.element_size()) <= kLatencyBytes;
}

/// Gathers two tensors of entries to every rank in one exchange.
std::pair<at::Tensor, at::Tensor> gathered(const at::Tensor& means, const at::Tensor& deviations,
                                           const std::vector<int64_t>& dims) {
  const at::Tensor both = at::stack({means, deviations.to(means.scalar_type())}, -1);
  const at::Tensor whole = redistribute(both, whole_along(spec_of(both)->placements(), dims));
  const at::Tensor last = whole.select(-1, 1);
  return {whole.select(-1, 0), last.is_complex() ? at::real(last) : last};
}

/// As in "Updating formulae and a pairwise algorithm for computing sample variances", 1979: deviations are taken from the shard's own mean, which
/// keeps their digits.
Spread spread_of(const at::Tensor& self, const std::vector<int64_t>& dims, const std::optional<at::Scalar>& correction,
                 bool keepdim) {
  static const auto op = operator_of<decltype(moments)>("shardwise::piece_moments");
  auto [counts, means, deviations] = op.call(self, dims);
  if (are_gathered(self, dims, means)) {
    std::tie(means, deviations) = gathered(means, deviations, dims);
    counts = counts_of(*spec_of(self), dims);
  }
  double n = 1;
  for (int64_t dim : dims) n *= static_cast<double>(self.size(dim));
  const at::Tensor mean = reduced(at::sum(means * counts, dims, /*keepdim=*/true).div_(n));
  const at::Tensor apart = (means - mean).abs().square_().mul_(counts).add_(deviations);
  const double divisor = std::max(n - (correction ? correction->toDouble() : 1), 0.0);
  const at::Tensor variance = at::sum(apart, dims, /*keepdim=*/true).div_(divisor);
  return {finished(variance, dims, keepdim).to(at::toRealValueType(self.scalar_type())),
          finished(mean, dims, keepdim).to(self.scalar_type())};
}

using MaybeScalar = std::optional<at::Scalar>;
using Pair = std::tuple<at::Tensor, at::Tensor>;

bool is_piecewise(const at::Tensor& self, c10::IntArrayRef dims) {
  return is_sharded_along(self, dims) && (at::isFloatingType(self.scalar_type()) || self.is_complex());
}

template <bool kIsStd>
at::Tensor var(const at::Tensor& self, at::OptionalIntArrayRef dim, const MaybeScalar& correction, bool keepdim) {
  static const ByRule whole(kIsStd ? "aten::std" : "aten::var", "correction");
  const auto dims = dims_of(self, dim);
  if (!is_piecewise(self, dims)) return whole(self, dim, correction, keepdim);
  const at::Tensor variance = spread_of(self, dims, correction, keepdim).variance;
  return kIsStd ? variance.sqrt() : variance;
}

template <bool kIsStd>
Pair var_mean(const at::Tensor& self, at::OptionalIntArrayRef dim, const MaybeScalar& correction, bool keepdim) {
  static const ByRule whole(kIsStd ? "aten::std_mean" : "aten::var_mean", "correction");
  const auto dims = dims_of(self, dim);
  if (!is_piecewise(self, dims)) return whole.tensors<2>(self, dim, correction, keepdim);
  const Spread spread = spread_of(self, dims, correction, keepdim);
  return {kIsStd ? spread.variance.sqrt() : spread.variance, spread.mean};
}

/// The best value and its first index; as in torch NaN is better than any number. Few entries are gathered as pairs of float64, in one message.
Pair best_along(const at::Tensor& self, const std::vector<int64_t>& dims, bool largest, bool keepdim) {
  static const auto op = operator_of<decltype(best)>("shardwise::piece_best");
  auto [values, places] = op.call(self, dims, largest, std::vector<int64_t>(self.dim(), 0), self.sizes());
  const bool fits_float64 = !at::isIntegralType(self.scalar_type(), /*includeBool=*/false) || self.element_size() < 8;
  if (fits_float64 && are_gathered(self, dims, places))
    std::tie(values, places) = gathered(values.to(at::kDouble), places, dims);
  const at::Tensor value = reduced(largest ? at::amax(values, dims, true) : at::amin(values, dims, true));
  const at::Tensor is_worse = values.ne(value).logical_and_(values.eq(values));  // a NaN is one of the best
  const at::Tensor place = at::amin(places.masked_fill(is_worse, kNowhere), dims, true);
  return {finished(value, dims, keepdim).to(self.scalar_type()), finished(place, dims, keepdim).to(at::kLong)};
}

template <bool kLargest>
at::Tensor arg_best(const at::Tensor& self, std::optional<int64_t> dim, bool keepdim) {
  static const ByRule whole(kLargest ? "aten::argmax" : "aten::argmin");
  const auto dims = dim ? dims_of(self, c10::IntArrayRef(*dim)) : dims_of(self, {});
  if (!is_sharded_along(self, dims) || self.is_complex() || self.scalar_type() == at::kBool)
    return whole(self, dim, keepdim);
  return std::get<1>(best_along(self, dims, kLargest, keepdim));
}

template <bool kLargest>
Pair best_of(const at::Tensor& self, int64_t dim, bool keepdim) {
  static const ByRule whole(kLargest ? "aten::max" : "aten::min", "dim");
  if (!is_sharded_along(self, dim) || self.is_complex()) return whole.tensors<2>(self, dim, keepdim);
  return best_along(self, dims_of(self, c10::IntArrayRef(dim)), kLargest, keepdim);
}

Pair smallest_and_largest(const at::Tensor& self, std::optional<int64_t> dim, bool keepdim) {
  static const ByRule whole("aten::aminmax");
  const auto dims = dim ? dims_of(self, c10::IntArrayRef(*dim)) : dims_of(self, {});
  if (!is_sharded_along(self, dims)) return whole.tensors<2>(self, dim, keepdim);
  const at::Tensor own = reduced(self);
  return {at::amin(own, dims, keepdim), at::amax(own, dims, keepdim)};
}

/// Gathers the shards' entries once. If these are many bytes, it reduces a maximum and a sum instead (Online normalizer calculation for softmax,
/// 2018).
at::Tensor logsumexp(const at::Tensor& self, c10::IntArrayRef dim, bool keepdim) {
  static const ByRule whole("aten::logsumexp");
  static const auto op = operator_of<decltype(log_of_sum)>("shardwise::piece_logsumexp");
  const auto dims = dims_of(self, dim);
  if (!is_sharded_along(self, dims) || self.is_complex()) return whole(self, dim, keepdim);
  const at::ScalarType to = at::isIntegralType(self.scalar_type(), /*includeBool=*/true)
                                ? c10::get_default_dtype_as_scalartype()
                                : self.scalar_type();
  at::Tensor entries = widened(self.to(to));
  if (spec_of(entries)->layout().has_one_box_each()) entries = op.call(entries, dims);
  if (are_gathered(self, dims, entries))
    return whole(redistribute(entries, whole_along(spec_of(entries)->placements(), dims)), dims, keepdim).to(to);
  const at::Tensor largest = reduced(at::amax(entries, dims, /*keepdim=*/true));
  const at::Tensor finite = largest.masked_fill(largest.abs().eq(INFINITY), 0);
  return finished(at::sum((entries - finite).exp_(), dims, /*keepdim=*/true).log() + finite, dims, keepdim).to(to);
}

/// Entries are the norms of the shards, or the elements' sizes if a rank has several shards. They combine as the powers that a norm sums.
at::Tensor vector_norm(const at::Tensor& self, const at::Scalar& ord, at::OptionalIntArrayRef dim, bool keepdim,
                       std::optional<at::ScalarType> dtype) {
  static const ByRule whole("aten::linalg_vector_norm");
  static const auto op = operator_of<decltype(norm)>("shardwise::piece_norm");
  const auto dims = dims_of(self, dim);
  if (!is_sharded_along(self, dims)) return whole(self, ord, dim, keepdim, dtype);
  const at::Tensor input = dtype ? self.to(*dtype) : self;
  const at::ScalarType to = at::toRealValueType(input.scalar_type());
  SW_CHECK(at::isFloatingType(to), "[aten::linalg_vector_norm] the norm of {} is not defined. Pass a floating dtype=.",
           c10::toString(input.scalar_type()));
  const double p = ord.toDouble();
  const bool is_one_each = spec_of(input)->layout().has_one_box_each();
  const at::Tensor entries =
      is_one_each ? op.call(input, dims, p) : widened(p == 0 ? input.ne(0).to(to) : at::abs(input));
  if (p == INFINITY) return at::amax(entries, dims, keepdim).to(to);
  if (p == -INFINITY) return at::amin(entries, dims, keepdim).to(to);
  if (p == 0 || p == 1) return at::sum(entries, dims, keepdim).to(to);
  return at::sum(entries.pow(p), dims, keepdim).pow(1 / p).to(to);
}

/// The gradient of the 2-norm `norm` of `self`, both with all dims; `norm` may be a number. A gradient of NaN stays NaN where the norm is 0.
at::Tensor norm_gradient(const at::Tensor& grad, const at::Tensor& self, const at::Tensor& norm) {
  return self * (grad * norm.reciprocal().masked_fill(norm.eq(0), 0));
}

/// Passes over the operand once in the backward of a 2-norm. torch's formula divides it, masks the quotients and multiplies these.
at::Tensor differentiable_norm(c10::DispatchKeySet keys, const at::Tensor& self, const at::Scalar& ord,
                               at::OptionalIntArrayRef dim, bool keepdim, std::optional<at::ScalarType> dtype) {
  const bool is_wide = self.scalar_type() == at::kFloat || self.scalar_type() == at::kDouble;
  if (!ord.equal(2) || dtype || !is_wide || self.is_sparse() || !self.requires_grad() || has_tangent(self))
    return at::_ops::linalg_vector_norm::redispatch(formula_keys(keys), self, ord, dim, keepdim, dtype);
  static const auto op = operator_of<decltype(norm_gradient)>("shardwise::norm_gradient");
  const at::Tensor result = below_derivatives([&] { return at::linalg_vector_norm(self, ord, dim, keepdim); });
  const auto derivative = [ord, keepdim, dims = dims_of(self, dim)](const at::Tensor& grad, const auto& saved) {
    const bool is_recorded = c10::GradMode::is_enabled();
    at::Tensor norm = is_recorded ? at::linalg_vector_norm(saved[0], ord, dims, keepdim) : saved[1], of_norm = grad;
    if (!keepdim && norm.dim() > 0)
      for (const int64_t each : std::set(dims.begin(), dims.end()))
        norm = norm.unsqueeze(each), of_norm = of_norm.unsqueeze(each);
    return is_recorded ? norm_gradient(of_norm, saved[0], norm) : op.call(of_norm, saved[0], norm);
  };
  // A write to the result is seen by the backward: the detached tensor shares its version.
  return with_derivative(self, result, {self, result.detach()}, "LinalgVectorNormBackward0", derivative);
}

/// There is no Partial of complex products: the products of the shards are gathered instead.
at::Tensor to_multiply(const at::Tensor& self, const std::vector<int64_t>& dims) {
  static const auto op = operator_of<decltype(product)>("shardwise::piece_product");
  if (!self.is_complex()) return self;
  if (!spec_of(self)->layout().has_one_box_each())
    return redistribute(self, Placements(spec_of(self)->placements().size()));
  const at::Tensor products = is_sharded_along(self, dims) ? op.call(self, dims) : reduced(self);
  return redistribute(products, whole_along(spec_of(products)->placements(), dims));
}

at::Tensor prod_dim(const at::Tensor& self, int64_t dim, bool keepdim, std::optional<at::ScalarType> dtype) {
  static const ByRule by_rule("aten::prod", "dim_int");
  const at::Tensor input = dtype ? self.to(*dtype) : self;
  return by_rule(to_multiply(input, dims_of(self, c10::IntArrayRef(dim))), dim, keepdim, dtype);
}

at::Tensor prod_all(const at::Tensor& self, std::optional<at::ScalarType> dtype) {
  static const ByRule by_rule("aten::prod");
  const at::Tensor input = dtype ? self.to(*dtype) : self;
  return by_rule(to_multiply(input, dims_of(self, {})), dtype);
}

}  // namespace

void register_var_argmax(RuleTable& table) {
  define_operator("piece_moments(Tensor self, int[] dim) -> (Tensor counts, Tensor means, Tensor deviations)",
                  {&moments});
  define_operator(
      "piece_best(Tensor self, int[] dim, bool largest, int[] offsets, int[] sizes) -> (Tensor values, Tensor places)",
      {&best});
  define_operator("piece_product(Tensor self, int[] dim) -> Tensor", {&product});
  define_operator("piece_norm(Tensor self, int[] dim, float ord) -> Tensor", {&norm});
  define_operator("norm_gradient(Tensor grad, Tensor self, Tensor norm) -> Tensor",
                  {.compute = &norm_gradient, .traced = &norm_gradient});
  table.keep_symbols({"shardwise::norm_gradient", "shardwise::piece_logsumexp", "shardwise::piece_norm"});
  table.add("shardwise::norm_gradient", pointwise().linear_in_first());
  define_operator("piece_logsumexp(Tensor self, int[] dim) -> Tensor", {&log_of_sum});
  table.add({"shardwise::piece_moments", "shardwise::piece_best", "shardwise::piece_product",
             "shardwise::piece_logsumexp", "shardwise::piece_norm"},
            Rule::placed("one entry per shard", place).localized(localize_offsets));
  aten_kernels().impl("var.correction", &var<false>);
  aten_kernels().impl("std.correction", &var<true>);
  aten_kernels().impl("var_mean.correction", &var_mean<false>);
  aten_kernels().impl("std_mean.correction", &var_mean<true>);
  aten_kernels().impl("argmax", &arg_best<true>);
  aten_kernels().impl("argmin", &arg_best<false>);
  aten_kernels().impl("max.dim", &best_of<true>);
  aten_kernels().impl("min.dim", &best_of<false>);
  aten_kernels().impl("aminmax", &smallest_and_largest);
  aten_kernels().impl("logsumexp", &logsumexp);
  aten_kernels().impl("linalg_vector_norm", &vector_norm);
  aten_autograd_kernels().impl("linalg_vector_norm", torch::CppFunction(&differentiable_norm));
  aten_kernels().impl("prod", &prod_all);
  aten_kernels().impl("prod.dim_int", &prod_dim);
}

}  // namespace shardwise
