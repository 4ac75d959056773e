// ops/embedding/row_ranges.h: the range of numbers in each row of a table, which quantisation needs.
#pragma once

#include "runtime/tensor/spec.h"

#include <ATen/core/Tensor.h>

#include <vector>

namespace shardwise {

/// The smallest number of each row and the negated largest, float32 [rows, 2]. Over the pieces of a row, the minimum of each gives the range of the
/// whole row. Infinities if the piece has no columns.
at::Tensor range_of_rows(const at::Tensor& piece);

/// The number of a row of the table for which some rank has a number that is not finite; the table's row count if there is no such row. `numbers`:
/// [rows, n] for each of this rank's pieces; pieces without columns do not count. Collective over the mesh's members.
int64_t first_unbounded_row(const Spec& table, const std::vector<at::Tensor>& numbers);

}  // namespace shardwise
