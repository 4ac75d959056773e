// kernels/row_norms.h: norms of rows, and rows scaled down to a maximal norm.
#pragma once

#include "kernels/rows.h"

namespace shardwise::kernels {

/// results[i] = sum over the columns of |x|^p of row `rows[i]` of the piece; the largest |x| where p is infinite. Sums over the
/// columns of several pieces add up. For i in [begin, end).
void row_powers(const Rows& table, const int64_t* rows, double p, double* results, int64_t begin, int64_t end);

/// Multiplies row `rows[i]` by max_norm / (norm + 1e-7), torch's factor, where its norm exceeds max_norm. `powers`: those of row_powers(),
/// summed over all column pieces. For i in [begin, end).
void shorten_rows(const Rows& table, const int64_t* rows, double p, double max_norm, const double* powers,
                  int64_t begin, int64_t end);

}  // namespace shardwise::kernels
