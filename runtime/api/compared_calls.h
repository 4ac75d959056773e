// runtime/api/compared_calls.h: whether the ranks call a module with the same plain arguments.
//
//   model(ids, scale=0.5)      first call: each rank sends a hash of {"args[0]", ids} and {"scale", 0.5}
//   model(other, scale=2.0)    other values of the same shapes: nothing is sent
//   model(longer, scale=2.0)   another shape: compared again
#pragma once

#include "runtime/tensor/device_mesh.h"

#include <ATen/core/Tensor.h>

#include <mutex>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

namespace shardwise {

/// A plain tensor or number that a module was called with, and where it stood: "input_ids", "args[0]['mask']".
struct ForwardArgument {
  std::string path;
  at::Tensor tensor;  // undefined where it is a number
  std::string type;   // of the number, "float"
  std::string text;   // its value
};

/// How many plain arguments of a call are looked at: the first ones.
constexpr int64_t kMostArguments = 1000;

/// The calls of one module. A call's signature is what it was called with except values: places, shapes and dtypes of the plain tensors, places
/// and types of numbers. All ranks of the meshes make calls of the same signatures in the same order.
class ComparedCalls {
 public:
  /// `meshes`: those of the module's distributed tensors.
  explicit ComparedCalls(std::vector<MeshPtr> meshes);

  /// By mesh, why the call's arguments are not the same on all its ranks.
  using Differences = std::vector<std::pair<MeshPtr, std::string>>;

  /// Returns the differences that the ranks found at the first call of this signature; under the order check (order_check.h), at this call.
  /// `name`: of the module, for the text.
  ///
  /// Collective over each mesh at the first call of a signature that has arguments: gathers two numbers per rank, and where they differ one
  /// per argument and rank. CommTrace leaves both out. Later calls read no value, and cost a hash of the signature. Nothing is compared while
  /// torch traces, in a backward, or where tensors are on the meta device.
  Differences differences(const std::string& name, const std::vector<ForwardArgument>& arguments);

  /// The next call with the signature of the last one is compared again.
  void forget_last();

  const std::vector<MeshPtr>& meshes() const { return meshes_; }

 private:
  std::vector<MeshPtr> meshes_;
  std::mutex mutex_;
  std::unordered_map<int64_t, Differences> known_;  // by signature
  int64_t last_ = 0;
};

/// The meshes of those of `tensors` that are distributed, each once, in their order.
std::vector<MeshPtr> meshes_of(const std::vector<at::Tensor>& tensors);

}  // namespace shardwise
