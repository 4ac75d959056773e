// ops/embedding/row_ranges.h: the range of numbers of each row of a table, of which quantised rows are made.
#pragma once

#include "runtime/tensor/spec.h"

#include <ATen/core/Tensor.h>

#include <vector>

namespace shardwise {

/// The least number of each row and the negative of the largest, float32 [rows, 2]: the least of both over pieces are those of the whole.
/// Infinities without columns.
at::Tensor range_of_rows(const at::Tensor& piece);

/// One row of the table, of those for which some rank has a number that is not finite; the number of rows where there is none. `numbers`:
/// [rows, n], of each of this rank's pieces; pieces without columns do not count. Collective over the mesh's members.
int64_t first_unbounded_row(const Spec& table, const std::vector<at::Tensor>& numbers);

}  // namespace shardwise
