// ops/embedding/packed_rows.h: packed rows (kernels/packed_rows.h) as plain tensors of one rank; no messages.
//
// Packed rows are int32 words [n, kernels::packed_words(width)], contiguous, so that functions that only copy rows work on them.
#pragma once

#include "kernels/packed_rows.h"
#include "ops/embedding/row_kernels.h"

namespace shardwise {

/// The parts of packed rows, as views: uint8 [n, width]; float32 [n, 2].
at::Tensor codes_in(const at::Tensor& words, int64_t width);
at::Tensor scales_and_offsets_in(const at::Tensor& words);

/// `ranges`: float32 [n, 2], the smallest and the largest number of each row, both finite. If a row is split over several pieces, they are those of
/// the whole row, so that each part is packed like the whole.
at::Tensor pack_rows(const at::Tensor& rows, const at::Tensor& ranges);

/// lookup_rows_into() and pool_rows() for packed rows. Results have the dtype of `results`, or `dtype`.
void lookup_packed_rows_into(const at::Tensor& results, const at::Tensor& words, const at::Tensor& ids,
                             int64_t first_row);
at::Tensor pool_packed_rows(const at::Tensor& words, int64_t width, at::ScalarType dtype, int64_t first_row,
                            const IdBags& bags, kernels::Pooling pooling, at::Tensor* chosen = nullptr);

}  // namespace shardwise
