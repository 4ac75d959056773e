// ops/norms/statistics.h: what the norms share: optional weights, and the dtypes that statistics are computed and kept in.
#pragma once

#include <ATen/OpMathType.h>
#include <ATen/core/Tensor.h>

#include <optional>

namespace shardwise {

using MaybeTensor = std::optional<at::Tensor>;

inline bool is_given(const MaybeTensor& tensor) { return tensor && tensor->defined(); }

/// Half precision is computed in float32.
inline at::Tensor widened(const at::Tensor& tensor) { return tensor.to(at::toOpMathType(tensor.scalar_type())); }

/// Statistics of a half-precision input have the dtype of the weight, float32 in mixed precision.
inline at::ScalarType statistics_dtype(const at::Tensor& input, const MaybeTensor& weight) {
  return is_given(weight) ? weight->scalar_type() : input.scalar_type();
}

}  // namespace shardwise
