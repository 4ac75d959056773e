// kernels/row_lookup.h: copies the rows that ids name.
#pragma once

#include "kernels/rows.h"

namespace shardwise::kernels {

/// The treatment of result rows whose ids name no row of the piece: set to zero, or kept.
enum class Miss : uint8_t { kZero, kKeep };

/// Copies the row of id i to row i of `results` (the table's element, rows `result_step` elements apart), for i in [begin, end).
/// Cost: one pass over the results, no memory.
void look_up(const Rows& table, const Ids& ids, Miss miss, void* results, int64_t result_step, int64_t begin,
             int64_t end);

}  // namespace shardwise::kernels
