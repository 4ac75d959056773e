// kernels/row_norms.h: norms of rows, and scaling of rows down to a maximum norm.
#pragma once

#include "kernels/rows.h"

namespace shardwise::kernels {

/// For i in [begin, end): results[i] = sum over the columns of |x|^p of row `rows[i]` of the piece, or the largest |x| if p is infinite.
/// The sums of pieces with different columns of a row add up.
void row_powers(const Rows& table, const int64_t* rows, double p, double* results, int64_t begin, int64_t end);

/// For i in [begin, end): if the norm of row `rows[i]` exceeds max_norm, multiplies the row by max_norm / (norm + 1e-7), torch's factor.
/// `powers`: results of row_powers(), summed over all column pieces.
void shorten_rows(const Rows& table, const int64_t* rows, double p, double max_norm, const double* powers,
                  int64_t begin, int64_t end);

}  // namespace shardwise::kernels
