// shardwise/fully_shard.h: FSDP of torch::nn modules, like torch's fully_shard: each rank keeps its part of every parameter, gradient and optimizer
// state, and computes on its part of the batch.
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
  /// True: parameters that were gathered for a forward are freed after it, and those that autograd saved are gathered again for the backward.
  /// False: they are kept until the backward has ended.
  bool reshard_after_forward = true;
  /// The index in mesh.root() of the rank whose parameters are sent to all others; nullopt: each rank takes its part of its own parameters, and
  /// nothing is sent.
  std::optional<int64_t> src_data_rank = 0;
};

/// Replaces all parameters of `module` by DTensors on mesh.root(). They are sharded over `mesh` along their first dim, of any size, or along the
/// first dim that parallelize_module() has not sharded over another dim of that mesh. Over a mesh of two dims they are sharded over the second, and
/// replicated over the first. Parameters of an inner module that was fully sharded before, over the same mesh, stay as they are. A parameter that
/// several modules share stays one parameter. Buffers stay plain replicas.
///
/// A call by forward(module, ...) gathers the parameters ahead, in shared messages, and reduce-scatters their gradients together, so activations stay
/// where the batch is. Tables that only Embedding modules use are not gathered: only the rows looked up are sent. Inner modules that were fully
/// sharded before, and are called by forward(), gather their own parameters when they are called. An ordinary call, module->forward(...), gathers
/// nothing ahead: each operator moves parameters or activations, whichever are fewer bytes.
///
/// Plain inputs of forward(module, ...) are this rank's part of the batch: any number of rows (dim 0) on each rank along `mesh`.
///
/// Collective over the mesh. Throws on all ranks, before anything is sharded: c10::ValueError for a mesh of more than two dims, for parameters on
/// another mesh or already on the dims of `mesh`, for a module that is fully sharded over another dim, and for a parameter whose member is not known
/// (shardwise/module_tensors.h) or that differs between ranks.
void fully_shard(torch::nn::Module& module, const Mesh& mesh, const FullyShardOptions& options = {});
template <class M>
void fully_shard(const torch::nn::ModuleHolder<M>& module, const Mesh& mesh, const FullyShardOptions& options = {}) {
  fully_shard(*module.ptr(), mesh, options);
}

}  // namespace shardwise
