// runtime/api/module_values.h: inputs and outputs of a module on a mesh of one dim.
#pragma once

#include "runtime/api/dtensor.h"

#include <optional>

namespace shardwise {

/// True if `of_plain` shards the last of `n_dims` dims, so that a layer's n_features is the whole size of the dim.
bool shards_features(const Placement& of_plain, int64_t n_dims);

/// `tensor`, a DTensor on a 1-D mesh, placed as `wanted` (nullopt: unchanged), or with `is_local` this rank's piece of that. A tensor that is already
/// sharded along the wanted dim keeps its (possibly uneven) sizes.
at::Tensor laid_out(const at::Tensor& tensor, const std::optional<Placement>& wanted, bool is_local);

}  // namespace shardwise
