// runtime/api/module_values.h: inputs and outputs of a module on a mesh of one dim.
#pragma once

#include "runtime/api/dtensor.h"

#include <optional>

namespace shardwise {

/// True if `placement`, of a plain tensor of `n_dims` dims, shards the last one, so that a layer's n_features is the whole size of the dim.
bool shards_features(const Placement& placement, int64_t n_dims);

/// Returns `tensor`, a DTensor on a 1-D mesh, placed as `wanted` (nullopt: unchanged); with `is_local`, this rank's piece of the result. Without
/// `is_local`, a tensor that is already sharded along the wanted dim, in pieces of any sizes, stays as it is.
at::Tensor laid_out(const at::Tensor& tensor, const std::optional<Placement>& wanted, bool is_local);

}  // namespace shardwise
