// wrappers/distributed_embedding/whole_tables.h: parts of whole tables on one rank or on all, as files and other programs want them.
#pragma once

#include "wrappers/distributed_embedding/table_memory.h"

#include <optional>

namespace shardwise {

/// The rows [rows.begin, rows.end) of a table, all columns, on the rank `root` of the mesh, or on all ranks where there is none; undefined
/// elsewhere. Collective: one exchange, no message longer than an owner's part of these rows. Cost: the memory of the rows, and of those of
/// one column slice.
at::Tensor gathered_rows(const TableLanes& lanes, const TableMemory& memory, size_t table, Interval rows,
                         std::optional<int64_t> root);

}  // namespace shardwise
