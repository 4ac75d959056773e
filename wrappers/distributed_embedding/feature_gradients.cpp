#include "wrappers/distributed_embedding/feature_gradients.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>

#include <algorithm>

namespace shardwise {
namespace {

/// The dtype of factors.
at::ScalarType sum_dtype(const RowGrads& grads) {
  return grads.values.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

/// The same gradients, with a row of values for each id.
RowGrads one_by_one(RowGrads grads, int64_t n_ids) {
  if (!grads.row_of.defined()) return grads;
  at::Tensor values = grads.values.index_select(0, grads.row_of);
  if (grads.chosen.defined()) {
    const at::Tensor own = at::arange(n_ids, grads.chosen.options()).unsqueeze(1);
    values = values * grads.chosen.index_select(0, grads.row_of).eq(own);
  }
  return {values, {}, grads.factors, {}};
}

}  // namespace

at::Tensor defined_gradient(const FeatureIds& feature, const at::Tensor& grad, int64_t n_columns,
                            const at::TensorOptions& options) {
  return grad.defined() ? grad : at::zeros(feature.sizes_with(n_columns), options);
}

RowGrads grads_of_feature(const FeatureIds& feature, const at::Tensor& grad, const at::Tensor& chosen) {
  const at::Tensor rows = grad.reshape({-1, grad.size(-1)});
  if (feature.pooling)
    return grads_of_bags(rows, feature.bags(feature.ids.to(grad.device())), *feature.pooling, chosen);
  return {rows.stride(1) == 1 || rows.size(1) <= 1 ? rows : rows.contiguous()};
}

RowGrads joined(std::vector<RowGrads> parts, const std::vector<int64_t>& n_ids) {
  if (parts.size() == 1) return std::move(parts[0]);
  const bool has_maxima = std::ranges::any_of(parts, [](const RowGrads& each) { return each.chosen.defined(); });
  const bool has_factors = std::ranges::any_of(parts, [](const RowGrads& each) { return each.factors.defined(); });
  std::vector<at::Tensor> values, rows, factors;
  int64_t first = 0;
  for (size_t i = 0; i < parts.size(); ++i) {
    if (has_maxima) parts[i] = one_by_one(std::move(parts[i]), n_ids[i]);
    const auto numbers = at::TensorOptions().dtype(at::kLong).device(parts[i].values.device());
    values.push_back(parts[i].values);
    rows.push_back((parts[i].row_of.defined() ? parts[i].row_of : at::arange(n_ids[i], numbers)) + first);
    first += parts[i].values.size(0);
    if (has_factors)
      factors.push_back(parts[i].factors.defined()
                            ? parts[i].factors
                            : at::ones({n_ids[i]}, parts[i].values.options().dtype(sum_dtype(parts[i]))));
  }
  return {at::cat(values), at::cat(rows), has_factors ? at::cat(factors) : at::Tensor(), {}};
}

RowGrads scaled(RowGrads grads, double factor, int64_t n_ids) {
  if (factor != 1) grads.scale(at::full({n_ids}, factor, grads.values.options().dtype(sum_dtype(grads))));
  return grads;
}

}  // namespace shardwise
