// kernels/row_sums.h: the gradient of each row: a sum over the ids that name it.
#pragma once

#include "kernels/rows.h"

namespace shardwise::kernels {

/// Row g of `results` [groups, width] (the gradients' element, contiguous) is the sum of the gradients of group g's ids, rounded once, for g
/// in [begin, end); groups as group_ids() made them. Summed in the order given, so the same on every run. Cost: one pass over the
/// gradients.
void sum_groups(const GradRows& grads, const int64_t* order, const int64_t* starts, void* results, int64_t begin,
                int64_t end);

/// The same as a table's dense gradient: row `rows[g]` of `results` [rows, width] is the sum of group g, other rows are zeros, for rows
/// [first_row, end_row). Every row is written once.
void sum_rows(const GradRows& grads, const int64_t* order, const int64_t* starts, const int64_t* rows, int64_t n_groups,
              void* results, int64_t first_row, int64_t end_row);

}  // namespace shardwise::kernels
