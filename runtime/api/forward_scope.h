// runtime/api/forward_scope.h: the forward of a distributed module that a thread is in. Plain tensors count as replicas there.
//
// A model computes the same from the same arguments on all ranks: masks, positions, constants. So the ranks compare the plain arguments of
// the outermost call before its forward begins, once for each signature (ComparedCalls):
//
//   model(ids)               the ranks compare ids; they are equal
//     embedding(ids, table)  ids is plain, table distributed: ids is a replica
//     scores + mask          mask is a replica too; nothing is sent
//
// Arguments that differ are an error only when a plain tensor meets a distributed one. A model that lays out its own arguments gets no
// error.
#pragma once

#include "runtime/tensor/bounded_map.h"
#include "runtime/tensor/device_mesh.h"

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

namespace shardwise {

/// A plain tensor or number that a module was called with, and its path in the arguments: "input_ids", "args[0]['mask']".
struct ForwardArgument {
  std::string path;
  at::Tensor tensor;  // undefined for a number
  std::string type;   // of a number: "float"
  std::string text;   // of a number: its value
};

/// Only this many plain arguments of a call are compared: the first ones.
constexpr int64_t kMostArguments = 1000;

/// When more are known, the oldest are forgotten, on all ranks at the same call.
constexpr size_t kMostSignatures = 4096;

/// The calls of one module, and whether the ranks made them with the same plain arguments.
///
///   model(ids, scale=0.5)      first call: each rank sends a hash of {"args[0]", ids} and {"scale", 0.5}
///   model(other, scale=2.0)    other values of the same shapes: nothing is sent
///   model(longer, scale=2.0)   another shape: compared again
///
/// A call's signature is everything about its arguments except values: paths, shapes and dtypes of plain tensors,
/// paths and types of numbers. All ranks of the meshes make calls of the same signatures in the same order.
class ComparedCalls {
 public:
  /// `meshes`: the meshes of the module's distributed tensors.
  explicit ComparedCalls(std::vector<MeshPtr> meshes);

  /// By mesh, the reason why the call's arguments are not the same on all its ranks.
  using Differences = std::vector<std::pair<MeshPtr, std::string>>;

  /// Returns the differences that the ranks found at the first call of this signature; under the order check (order_check.h), at this call.
  /// `name`: the module's name, for the text.
  ///
  /// Collective over each mesh at the first call of a signature that has arguments: gathers one number per argument and rank, which CommTrace
  /// leaves out. Later calls read no value and cost a hash of the signature. Nothing
  /// is compared while torch traces, in a backward, or, although it is counted, if tensors are on the meta device.
  Differences differences(const std::string& name, const std::vector<ForwardArgument>& arguments);

  /// Makes the next call with the signature of the last call be compared again.
  void forget_last();

  const std::vector<MeshPtr>& meshes() const { return meshes_; }

 private:
  std::vector<MeshPtr> meshes_;
  std::mutex mutex_;
  BoundedMap<int64_t, Differences, kMostSignatures> known_;  // by signature
  int64_t last_ = 0;
};

/// The meshes of the distributed tensors among `tensors`, each once, in order of first use.
std::vector<MeshPtr> meshes_of(const std::vector<at::Tensor>& tensors);

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
