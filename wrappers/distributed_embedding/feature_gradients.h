// wrappers/distributed_embedding/feature_gradients.h: converts gradients of results to gradient rows of ids.
#pragma once

#include "wrappers/distributed_embedding/feature_ids.h"

#include <vector>

namespace shardwise {

/// `grad`, the gradient of a feature's result, or zeros if it is undefined. `options`: of the table's values.
at::Tensor defined_gradient(const FeatureIds& feature, const at::Tensor& grad, int64_t n_columns,
                            const at::TensorOptions& options);

/// The gradient rows of one feature's ids. `grad`: the gradient of its result, or of some columns of it; `chosen`: for maxima, in the same columns.
RowGrads grads_of_feature(const FeatureIds& feature, const at::Tensor& grad, const at::Tensor& chosen);

/// Concatenates the gradient rows of several features. `n_ids`: by feature.
RowGrads joined(std::vector<RowGrads> parts, const std::vector<int64_t>& n_ids);

/// `grads` times `factor`.
RowGrads scaled(RowGrads grads, double factor, int64_t n_ids);

}  // namespace shardwise
