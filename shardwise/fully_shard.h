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
  /// Whether parameters that were gathered for a forward are dropped after it, and those that autograd saved are gathered again for the backward.
  /// Else they are kept until the backward is through.
  bool reshard_after_forward = true;
  /// The place in mesh.root() whose parameters are dealt to the others; none: every rank's own are taken, and nothing is sent.
  std::optional<int64_t> src_data_rank = 0;
};

/// Makes DTensors of all parameters of `module` on mesh.root(): sharded over `mesh` along their first dim, of any size, or along the
/// first that parallelize_module() has not sharded over another dim of that mesh. Over a mesh of two dims they are sharded over the second, and replicated
/// over the first. Parameters of an inner module that was fully sharded before, over the same mesh, stay as they are. Parameters that modules
/// share stay one. Buffers stay plain replicas.
///
/// A call by forward(module, ...) gathers them ahead, in messages that they share; gradients are reduce-scattered together. So activations stay
/// where the batch is. A table that only Embedding modules use is not gathered: the rows that ids name are sent. Modules inside that were fully
/// sharded before, and are called by forward(), gather their own when their turn comes. A call as usual, module->forward(...), gathers nothing
/// ahead: each operator moves either its parameters or its activations, whichever are fewer bytes.
///
/// Plain inputs of forward(module, ...) are this rank's part of the batch, rows (dim 0) of any number, on each rank along `mesh`.
///
/// Collective over the mesh. Throws, before anything is sharded and alike on all ranks: c10::ValueError for a mesh of more dims, for parameters on
/// another mesh or on the same dim of it, for a module that is fully sharded over another dim, and for a parameter whose member is not known
/// (shardwise/module_tensors.h), or that ranks do not have alike.
void fully_shard(torch::nn::Module& module, const Mesh& mesh, const FullyShardOptions& options = {});
template <class M>
void fully_shard(const torch::nn::ModuleHolder<M>& module, const Mesh& mesh, const FullyShardOptions& options = {}) {
  fully_shard(*module.ptr(), mesh, options);
}

}  // namespace shardwise
