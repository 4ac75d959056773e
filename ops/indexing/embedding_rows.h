// ops/indexing/embedding_rows.h: looking up rows of a piece of a table, and the reverse; plain tensors, no messages.
#pragma once

#include <ATen/core/Tensor.h>

namespace shardwise {

/// For each id the row `id - first_row` of `rows`, zeros where that is none of its rows.
///
/// Shapes: rows [n, d], ids [...] of int32 or int64; gives [..., d], contiguous. Cost: one pass over the result.
at::Tensor lookup_rows(const at::Tensor& rows, const at::Tensor& ids, int64_t first_row);

/// Zeros [n_rows, d] with each row of `grad` [..., d] added at `id - first_row`, where that is one of them and the id is not
/// `skipped`. Nothing larger than the result and `grad` is allocated. Cost: one pass over `grad`.
at::Tensor add_rows(const at::Tensor& grad, const at::Tensor& ids, int64_t first_row, int64_t n_rows, int64_t skipped);

}  // namespace shardwise
