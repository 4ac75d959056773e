// runtime/api/forward_scope.h: the forward of a distributed module that a thread is in. Plain tensors count as replicas there.
//
// A model computes the same from the same arguments on all ranks: masks, positions, constants. So the ranks compare the plain arguments of
// the outermost call before its forward begins, once for each signature (compared_calls.h):
//
//   model(ids)               the ranks compare ids; they are equal
//     embedding(ids, table)  ids is plain, table distributed: ids is a replica
//     scores + mask          mask is a replica too; nothing is sent
//
// Arguments that differ are an error only when a plain tensor meets a distributed one. A model that lays out its own arguments gets no
// error.
#pragma once

#include "runtime/api/compared_calls.h"

#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace shardwise {

/// The forward of a thread. A thread is in one forward at a time: calls of modules within it join it.
class ForwardScope {
 public:
  static constexpr const char* kWrap =
      "Wrap it with distribute_tensor(x, mesh, [Replicate()]) if all ranks have the same, with DTensor.from_local(x, "
      "mesh, [Shard(0)]) if each has its part of a batch, or work under implicit_replication().";

  /// Joins the open forward; false if this thread is in none. Further calls of the module that opened the forward are counted: each calls
  /// leave() once.
  static bool join(int64_t module);
  /// Opens a forward. `calls`: the calls of the module, whose ranks first compare these arguments. `is_running`, if given, returns on this
  /// thread whether the call still runs, because an interrupt may end it without leave(). The next query closes a scope whose call has
  /// ended.
  /// `covers_other_meshes`: plain tensors count as replicas also next to tensors on other meshes than those of `calls`.
  /// Pre: join() returned false. Collective if calls->differences() is.
  static void open(int64_t module, const std::string& name, std::shared_ptr<ComparedCalls> calls,
                   const std::vector<ForwardArgument>& arguments, std::function<bool()> is_running = {},
                   bool covers_other_meshes = true);
  /// Closes the scope at the last call of the module that opened it; otherwise does nothing.
  static void leave(int64_t module);

  static bool is_open();
  /// The reason why this forward's arguments are not the same on all ranks of `mesh`, and the way out, as a text for the error that the
  /// caller raises. "" if they are the same or were not compared. The next call of this signature is compared again. Sends nothing. Pre:
  /// is_open().
  static std::string difference(const DeviceMesh& mesh);
};

}  // namespace shardwise
