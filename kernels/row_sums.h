// kernels/row_sums.h: the gradient of each row: the sum over the ids that name it.
#pragma once

#include "kernels/rows.h"

namespace shardwise::kernels {

/// For each group g in [begin, end), as group_ids() made them: the sum of the gradients of its ids, rounded once, written to row
/// `rows[g]` of `results` (row g where `rows` is null), `result_step` elements apart, of the gradients' kind. Summed in the order
/// given, so the same on every run. Cost: one pass over the gradients.
void sum_groups(const GradRows& grads, const int64_t* order, const int64_t* starts, const int64_t* rows, void* results,
                int64_t result_step, int64_t begin, int64_t end);

}  // namespace shardwise::kernels
