// wrappers/piece_run.h: one call on wrappers, carried out piece by piece.
#pragma once

#include "runtime/rules/op_info.h"
#include "wrappers/local_shards_impl.h"

#include <ATen/core/stack.h>

namespace shardwise {

/// Calls `op` once per piece, with each wrapper on the stack replaced by its piece and "size" and "stride" arguments (which
/// speak of the wrapper's own sizes) by the piece's; fresh results become wrappers of the same offsets. Without pieces the
/// operator runs once on an empty one, for the results' dtypes.
/// Throws: c10::ValueError where wrappers have differing offsets, or "size" is not the wrapper's.
void run_pieces(const OpInfo& op, torch::jit::Stack& stack);

/// Calls `op`, which treats lists element by element, once with all pieces of all elements in the lists. Plain tensors may
/// be among the elements, the same ones in every list; 0-dim ones count for every piece.
void run_piece_lists(const OpInfo& op, torch::jit::Stack& stack);

}  // namespace shardwise
