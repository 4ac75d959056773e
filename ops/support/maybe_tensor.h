// ops/support/maybe_tensor.h: tensors that may be left out.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

namespace shardwise {

using MaybeTensor = std::optional<at::Tensor>;

inline bool is_given(const MaybeTensor& tensor) { return tensor && tensor->defined(); }

}  // namespace shardwise
