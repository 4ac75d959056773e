// ops/embedding/rows_of_ranks.h: the gradient rows that all ranks have for tables which each of them holds whole.
//
//   rank 0 has gradients of rows 1 and 4 of a table, rank 1 of rows 4 and 5:   both get those of rows 1, 4 and 5
#pragma once

#include "ops/embedding/row_exchange.h"
#include "plans/traffic.h"

namespace shardwise {

/// The rows of a table [n_rows, width] for which this rank has gradients, each once.
struct OwnRows {
  at::Tensor rows;  // [n] int64
  at::Tensor sums;  // [n, width]
  int64_t n_rows;
};

/// Returns the gradients of all members, by table; equal on all members to the last bit. If is_reduced(), rows are all-reduced, and come once. They
/// are otherwise sent as they are, and come once for each member that has them. So they are if all-reduces save less than 128 KiB for all tables.
/// Messages: the row numbers, and at most one exchange, and one all-reduce per dtype, for any number of tables. Collective.
std::vector<BoxGrads> rows_of_ranks(const Group& group, const std::vector<OwnRows>& tables);

}  // namespace shardwise
