// runtime/dispatch/foreach_run.h: runs list operators (foreach, fused optimizers) on the pieces of every list element at once.
#pragma once

#include "runtime/dispatch/bound_call.h"

namespace shardwise {

/// Carries out a decided call whose rule is per element: each list is flattened to this rank's pieces, and the operator called
/// once for all of them. Plain 0-dim elements and scalars are repeated for every piece of their element. Written tensors that are
/// Partial, or laid out in another way than their element of the first list, move there and back.
/// Pre: the elements of the first list are on one mesh.
void run_foreach(BoundCall& call, const Decision& decision);

/// Answers a per-element call whose lists hold tensors of several meshes, or plain ones too: one dispatch() per mesh, in the order of
/// first appearance, each with its elements of every list, and torch's own kernel for elements that are plain in all lists. To those a
/// distributed number is its value. False, and nothing done, where all are on one mesh.
bool dispatch_by_mesh(const OpInfo& op, torch::jit::Stack& stack);

}  // namespace shardwise
