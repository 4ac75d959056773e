// runtime/dispatch/foreach_run.h: runs list operators (foreach, fused optimizers) on the pieces of every list element at once.
#pragma once

#include "runtime/dispatch/bound_call.h"

namespace shardwise {

/// Runs a decided call whose rule is per element: each list is flattened to this rank's pieces, and the operator is called once for all of
/// them. Plain 0-dim elements and scalars are repeated for every piece of their element. Written tensors that are Partial, or whose layout
/// differs from their element's of the first list, move there and back. If some move and elements share memory, each element is a call of its own.
/// Pre: the elements of the first list are on one mesh.
void run_foreach(BoundCall& call, const Decision& decision);

/// Counts a write of per-element operator `op` to each of `tensors`, argument `arg`. torch's own kernels of such operators do that themselves.
/// Throws: c10::Error for an inference tensor outside inference_mode(), but not for a fused step, as torch.
void count_writes(const OpInfo& op, size_t arg, at::TensorList tensors);

/// Runs a per-element call whose lists have tensors on several meshes, or plain ones as well: one dispatch() per mesh, in order of first
/// appearance, with its elements of every list. torch's own kernel runs for elements that are plain in all lists; a distributed number is
/// passed to it as its value. Returns false, and does nothing, if all elements are on one mesh.
bool dispatch_by_mesh(const OpInfo& op, torch::jit::Stack& stack);

}  // namespace shardwise
