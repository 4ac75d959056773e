// wrappers/distributed_embedding/whole_tables.h: gathers rows of a table to one rank or to all, for files and other programs.
#pragma once

#include "wrappers/distributed_embedding/table_memory.h"

#include <optional>

namespace shardwise {

/// The rows [rows.begin, rows.end) of a table, all columns, on the rank `root` of the mesh, or on all ranks without a root; undefined elsewhere.
/// Collective: one exchange, no message longer than an owner's part of these rows. Cost: the memory of these rows, and of one column slice of them.
at::Tensor gathered_rows(const TableLanes& lanes, const TableMemory& memory, size_t table, Interval rows,
                         std::optional<int64_t> root);

}  // namespace shardwise
