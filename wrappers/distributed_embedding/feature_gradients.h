// wrappers/distributed_embedding/feature_gradients.h: gradients of results as gradient rows of ids.
#pragma once

#include "wrappers/distributed_embedding/feature_ids.h"

#include <vector>

namespace shardwise {

/// `grad`, that of a feature's result; zeros where it is undefined. `options`: of the table's values.
at::Tensor defined_gradient(const FeatureIds& feature, const at::Tensor& grad, int64_t n_columns,
                            const at::TensorOptions& options);

/// The gradient rows of one feature's ids. `grad`: of its result, or of some of its columns; `chosen`: of maxima, in the same columns.
RowGrads grads_of_feature(const FeatureIds& feature, const at::Tensor& grad, const at::Tensor& chosen);

/// The gradient rows of the ids of several features, one after the other. `n_ids`: by feature.
RowGrads joined(std::vector<RowGrads> parts, const std::vector<int64_t>& n_ids);

/// The same times `factor`.
RowGrads scaled(RowGrads grads, double factor, int64_t n_ids);

}  // namespace shardwise
