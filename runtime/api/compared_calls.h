// runtime/api/compared_calls.h: whether the ranks call a module with the same plain arguments.
//
//   model(ids, scale=0.5)      first call: each rank sends a hash of {"args[0]", ids} and {"scale", 0.5}
//   model(other, scale=2.0)    other values of the same shapes: nothing is sent
//   model(longer, scale=2.0)   another shape: compared again
#pragma once

#include "runtime/tensor/bounded_map.h"
#include "runtime/tensor/device_mesh.h"

#include <ATen/core/Tensor.h>

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

/// The calls of one module. A call's signature is everything about its arguments except values: paths, shapes and dtypes of plain tensors,
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

}  // namespace shardwise
