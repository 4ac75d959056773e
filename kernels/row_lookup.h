// kernels/row_lookup.h: copies of the rows that ids name.
#pragma once

#include "kernels/rows.h"

namespace shardwise::kernels {

/// What happens to result rows whose ids name no row of the piece.
enum class Miss : uint8_t { kZero, kKeep };

/// Row i of `results` (the table's element, rows `result_step` elements apart) is the row of id i, for i in [begin, end).
/// Cost: one pass over the results, no memory.
void look_up(const Rows& table, const Ids& ids, Miss miss, void* results, int64_t result_step, int64_t begin,
             int64_t end);

}  // namespace shardwise::kernels
