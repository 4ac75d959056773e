// wrappers/id_transform/modulo_hash.h: raw 64-bit ids to rows by a hash alone.
#pragma once

#include <ATen/core/Tensor.h>

namespace shardwise {

/// Rows of [0, n_rows) by the hashes of plain ids, or of each piece of a DTensor of ids; the result is int64 with the same shape and placements. Sends
/// nothing. Ids may share rows: if n ids are hashed into m rows, an id has its row alone with probability (1 - 1/m)^(n - 1).
/// Throws: c10::TypeError for ids that are no integers; c10::ValueError for a Partial tensor and for n_rows below 1.
at::Tensor modulo_hash(const at::Tensor& ids, int64_t n_rows, int64_t seed = 0);

}  // namespace shardwise
