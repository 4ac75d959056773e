// shardwise/fully_shard.h: FSDP of torch::nn modules, as torch's fully_shard: each rank keeps its part of every parameter, gradient and
// optimizer state, and computes on its part of the batch.
//
//   auto mesh = sw::init_device_mesh("cpu", {4}, {"dp"});
//   sw::fully_shard(model, mesh);
//   torch::optim::AdamW optimizer(model->parameters(), 1e-3);           // steps on the shards
//   at::Tensor loss = torch::mse_loss(sw::forward(model, rows), sw::from_local_batch(targets, mesh));     // rows, targets: this rank's
//   loss.backward();                                                    // gradients: reduce-scattered, sharded as the parameters
#pragma once

#include "shardwise/device_mesh.h"

#include <torch/nn/pimpl.h>

#include <optional>

namespace shardwise {

struct FullyShardOptions {
  /// True: an operator gathers what it needs of a parameter, and drops it; its backward gathers again. Operators have their rules: where it is fewer
  /// bytes, activations move instead, as for a table of which few rows are looked up, or a batch smaller than the layer.
  /// False: where the module is called by forward(), its parameters are gathered ahead, in messages that they share, and kept for the
  /// backward; gradients are reduce-scattered together.
  bool reshard_after_forward = true;
  /// The place in mesh.root() whose parameters are dealt to the others; none: every rank's own are taken, and nothing is sent.
  std::optional<int64_t> src_data_rank = 0;
};

/// Makes DTensors of all parameters of `module` on mesh.root(): sharded over `mesh` along their first dim, of any size, or along the
/// first that parallelize_module() has not sharded over another dim of that mesh. Over a mesh of two dims they are sharded over the second, and replicated
/// over the first. Those of an inner module that was fully sharded before are left to it. Parameters that modules share stay one.
/// Buffers stay plain replicas.
///
/// Plain inputs of forward(module, ...) are then this rank's part of the batch, rows (dim 0) of any number, on each rank along `mesh`.
///
/// Collective over the mesh. Throws, before anything is sharded and alike on all ranks: c10::ValueError for a mesh of more dims, for parameters on
/// another mesh, and for one whose member is not known (shardwise/module_tensors.h).
void fully_shard(torch::nn::Module& module, const Mesh& mesh, const FullyShardOptions& options = {});
template <class M>
void fully_shard(const torch::nn::ModuleHolder<M>& module, const Mesh& mesh, const FullyShardOptions& options = {}) {
  fully_shard(*module.ptr(), mesh, options);
}

}  // namespace shardwise
