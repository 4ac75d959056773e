// wrappers/piece_run.h: runs one call on wrappers piece by piece.
#pragma once

#include "runtime/rules/op_info.h"
#include "wrappers/local_shards_impl.h"

#include <ATen/core/stack.h>

namespace shardwise {

/// Calls `op` once per piece, with each wrapper on the stack replaced by its piece and "size" and "stride" arguments (of the wrapper itself) by the
/// piece's. New results become wrappers with the same offsets. Without pieces the operator runs once on an empty piece, for the results' dtypes.
/// Throws: c10::ValueError if wrappers have different offsets, or "size" is not the wrapper's.
void run_pieces(const OpInfo& op, torch::jit::Stack& stack);

/// Calls `op`, which works on lists element by element, once with all pieces of all elements. Elements may be plain tensors, at the same positions in
/// every list; 0-dim tensors apply to every piece.
void run_piece_lists(const OpInfo& op, torch::jit::Stack& stack);

}  // namespace shardwise
