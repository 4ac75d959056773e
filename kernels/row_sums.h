// kernels/row_sums.h: the gradient of each row, summed over the ids that name the row.
#pragma once

#include "kernels/id_groups.h"

namespace shardwise::kernels {

/// Writes row g of `results` [groups, width] (the gradients' element, contiguous) for g in [begin, end): the sum of the gradients of group
/// g's ids, rounded once. The order of summation is fixed, so results are the same on every run. Cost: one
/// pass over the gradients.
void sum_groups(const GradRows& grads, const Groups& groups, void* results, int64_t begin, int64_t end);

/// The same as a table's dense gradient: row `rows[g]` of `results` [rows, width] is the sum of group g and other rows are zeros, for rows
/// [first_row, end_row). Every row is written once.
void sum_rows(const GradRows& grads, const Groups& groups, const int64_t* rows, void* results, int64_t first_row,
              int64_t end_row);

}  // namespace shardwise::kernels
