// shardwise/fully_shard.h: FSDP of torch::nn modules, as Python's fully_shard: each rank keeps its part of every parameter, gradient and optimizer
// state, and computes on its part of the batch.
//
//   auto mesh = sw::init_device_mesh("cpu", {4}, {"dp"});
//   for (auto& layer : *model->layers) sw::fully_shard(layer, mesh);    // each layer is gathered when its turn comes
//   sw::fully_shard(model, mesh);                                       // the other parameters
//   torch::optim::AdamW optimizer(model->parameters(), 1e-3);           // steps on the shards
//   at::Tensor loss = torch::mse_loss(sw::forward(model, rows), targets);  // rows, targets, loss: this rank's
//   loss.backward();                                                    // gradients: the mean over the ranks, sharded as the parameters
#pragma once

#include "shardwise/device_mesh.h"
#include "wrappers/fsdp/gather_schedule.h"

#include <torch/nn/pimpl.h>

#include <functional>
#include <memory>
#include <optional>
#include <vector>

namespace shardwise {

/// The dtypes of a module's forward and backward. Sharded parameters and their gradients keep the dtype of the parameter.
struct MixedPrecisionPolicy {
  /// Parameters are gathered and used in this dtype.
  std::optional<c10::ScalarType> param_dtype = {};
  /// Gradients are added up in this dtype. They are sent in their own.
  std::optional<c10::ScalarType> reduce_dtype = {};
  /// Floating-point outputs are cast to it.
  std::optional<c10::ScalarType> output_dtype = {};
  /// Floating-point inputs are cast to param_dtype.
  bool cast_forward_inputs = true;
};

struct FullyShardOptions {
  /// True frees gathered parameters after the forward, and gathers them again for the backward. False keeps them until the backward. nullopt is true
  /// for all modules but the outermost. A number n that divides the number of ranks: each rank keeps one n-th of them after the forward, and gathers
  /// for the backward among n consecutive ranks.
  ReshardAfterForward reshard_after_forward = {};
  /// Returns the Shard of a parameter, of any dim or of given sizes; nullopt is Shard(0), and Shard(1) if the
  /// parameter is divided into given sizes along dim 0 already. It must return the same on all ranks.
  std::function<std::optional<Placement>(const at::Tensor& parameter)> shard_placement_fn = {};
  MixedPrecisionPolicy mp_policy = {};
  /// These parameters and their gradients do not change.
  std::vector<at::Tensor> ignored_params = {};
};

/// Replaces the parameters of `module` by DTensors [Shard(0)] on `mesh`, with parts of any sizes; on a mesh of two dims by [Replicate(), Shard(0)].
/// Parameters that parallelize_module() sharded over another dim of mesh.root() are sharded further, and are DTensors on that dim during a forward.
/// The parameters that no inner call of fully_shard() took form one group, so call it on inner modules first. A list of modules forms one group. A
/// parameter that several modules share stays one if all of them are in one call. Buffers stay as they are.
///
/// Each rank calls forward(module, ...) with its part of the batch, as plain tensors. Before that, one exchange gathers the group, while the group
/// before it still computes; the module holds plain tensors until its forward ends. After the backward, one exchange reduces the gradients to the mean
/// over the ranks. This also holds for inner modules that were fully sharded: the outer module must call them by forward(), too. An ordinary call,
/// module->forward(...), gathers nothing. It finds this rank's parts, as DTensors: with plain inputs it is an error, as for any DTensor, and DTensors
/// as inputs are computed with by the rules of operators, so gradients are those of the whole batch and not a mean.
///
/// Sends nothing: each rank takes its part of its own parameters, which must be equal on all ranks. A forward and a backward are collective over the
/// mesh: all ranks must call the same modules. Cost per rank and step: it receives the parameters that it lacks, twice (once without resharding), and
/// n-1 times the size of its part in gradients, with one byte per parameter.
///
/// Throws on all ranks, before anything is sharded: c10::ValueError for a module that is fully sharded already or has no parameters left, for an inner
/// module after the outer one, for a parameter that another group has, for a mesh of more than two dims or without a common root with a parameter's
/// mesh, for a number in reshard_after_forward that does not divide the number of ranks, and for a parameter whose member is not known
/// (shardwise/module_tensors.h); c10::IndexError for a Shard of a dim that a parameter lacks.
void fully_shard(const std::vector<std::shared_ptr<torch::nn::Module>>& modules, const Mesh& mesh,
                 const FullyShardOptions& options = {});
void fully_shard(torch::nn::Module& module, const Mesh& mesh, const FullyShardOptions& options = {});
template <class M>
void fully_shard(const torch::nn::ModuleHolder<M>& module, const Mesh& mesh, const FullyShardOptions& options = {}) {
  fully_shard(*module.ptr(), mesh, options);
}

}  // namespace shardwise
