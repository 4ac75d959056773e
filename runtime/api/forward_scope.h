// runtime/api/forward_scope.h: within which forward of a distributed module a thread is. Plain tensors count as replicas there.
//
// What a model makes of equal arguments is equal on all ranks: masks, positions, constants. So the ranks compare the plain arguments
// of the outermost call, before its forward begins and once for each signature (compared_calls.h):
//
//   model(ids)               the ranks compare ids; they are equal
//     embedding(ids, table)  ids is plain, table distributed: ids is a replica
//     scores + mask          so is mask; nothing is sent
//
// Arguments that differ are an error where a plain tensor meets a distributed one, and none where the model itself lays out its arguments.
#pragma once

#include "runtime/api/compared_calls.h"

#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace shardwise {

/// A thread is in one forward at a time: calls of modules within it join it.
class ForwardScope {
 public:
  static constexpr const char* kWrap =
      "Wrap it with distribute_tensor(x, mesh, [Replicate()]) if all ranks have the same, with DTensor.from_local(x, "
      "mesh, "
      "[Shard(0)]) if each has its part of a batch, or work under implicit_replication().";

  /// False where this thread is in no forward. Calls of the module that opened it are counted: each leaves once.
  static bool join(int64_t module);
  /// `calls`: of the module, whose ranks compare these arguments first. `is_running`, where given, tells on this thread whether the call still
  /// runs: an interrupt may end it without leave(). A scope whose call has ended is closed by whoever asks for it next.
  /// Pre: join() gave false. Collective where calls->differences() is.
  static void open(int64_t module, const std::string& name, std::shared_ptr<ComparedCalls> calls,
                   const std::vector<ForwardArgument>& arguments, std::function<bool()> is_running = {});
  /// Closes the scope with the last call of the module that opened it; else does nothing.
  static void leave(int64_t module);

  static bool is_open();
  /// Why the arguments of this forward are not the same on all ranks of `mesh`, as a sentence and the way out; "" where they are, or were not
  /// compared. The caller raises it: the next call of this signature is compared again. Sends nothing. Pre: is_open().
  static std::string difference(const DeviceMesh& mesh);
};

}  // namespace shardwise
