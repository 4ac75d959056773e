// runtime/api/forward_scope.h: within which forward of a distributed module a thread is, and whether plain tensors are replicas there.
//
// What a model makes of equal arguments is equal on all ranks: masks, positions, constants. So the ranks compare the plain arguments
// of the outermost call, once, when the first plain tensor meets a DTensor:
//
//   model(input_ids=ids)     opens the scope with {"input_ids", ids}
//     embedding(ids, table)  ids is plain, table distributed: two numbers per rank travel; equal: ids is a replica
//     scores + mask          nothing travels any more
//
// A model that gets along without such meetings sends nothing.
#pragma once

#include "runtime/tensor/spec.h"

#include <ATen/core/Tensor.h>

#include <functional>
#include <string>
#include <vector>

namespace shardwise {

/// Something plain that a module was called with, and where it stood: "input_ids", "args[0]['mask']".
struct ForwardArgument {
  std::string path;
  at::Tensor tensor;  // undefined where `text` is the value
  std::string text;
};

/// A thread is in one forward at a time: calls of modules within it join it.
class ForwardScope {
 public:
  static constexpr const char* kWrap =
      "Wrap it with distribute_tensor(x, mesh, [Replicate()]) if all ranks have the same, with DTensor.from_local(x, "
      "mesh, "
      "[Shard(0)]) if each has its part of a batch, or work under implicit_replication().";

  /// False where this thread is in no forward. Calls of the module that opened it are counted: each leaves once.
  static bool join(int64_t module);
  /// Pre: join() gave false. `is_running`, where given, tells on this thread whether the call still runs: an interrupt may end it without
  /// leave(). A scope whose call has ended is closed by whoever asks for it next.
  static void open(int64_t module, std::string name, std::vector<ForwardArgument> arguments,
                   std::function<bool()> is_running = {});
  /// Closes the scope with the last call of the module that opened it; else does nothing.
  static void leave(int64_t module);
  /// The module is gone: its number may be another's from now on. To be called from any thread.
  static void forget(int64_t module);

  static bool is_open();
  /// Why plain tensors are no replicas on `mesh` here, as a sentence and the way out; "" where they are. Pre: is_open().
  static std::string objection(const MeshPtr& mesh);
  /// The same as far as it is in the arguments: the ranks of the mesh compare them when it is first asked. Cost: that gathers two
  /// numbers per rank, and where they differ one per argument and rank. CommTrace leaves both out. Ranks without arguments send nothing: where
  /// others have some, these wait for them until the group's time-out, whose error says so.
  static std::string difference(const MeshPtr& mesh);

  /// Tells an open scope that the program gets this rank's part of a tensor of `spec` as a plain one: from now on plain tensors may
  /// differ, unless all ranks have the same.
  static void give_out(const Spec& spec);
  /// The same of a gradient of `spec` that a backward within the forward gives to a plain tensor.
  static void give_out_gradient(const Spec& spec);
  /// The same of a plain result of unknown layout; `by` names what gave it.
  static void give_out(const char* by);
};

/// While it lives this thread is in no forward: what runs works on pieces.
class OutsideForward {
 public:
  OutsideForward();
  ~OutsideForward();
  OutsideForward(const OutsideForward&) = delete;
  OutsideForward& operator=(const OutsideForward&) = delete;

 private:
  void* outer_;
};

}  // namespace shardwise
