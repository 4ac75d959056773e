// shardwise/parallel_style.h: torch's styles for parallelize_module, as functions of the module.
//
//   sw::ColwiseParallel()                                   // output features over the ranks
//   sw::RowwiseParallel().output_layouts(sw::Shard(1))      // input features; the sums reduce-scattered along the sequence
//
// A torch::nn module has no hooks. A style always shards the parameters. Its layouts of inputs and outputs take effect if the module is called by
// forward() of shardwise/forward.h. In other calls, operators take DTensors in any layout and give DTensors, by their rules: the values are the
// same, and fewer or more bytes may be sent.
#pragma once

#include "wrappers/module_layouts.h"

#include <torch/nn/module.h>

#include <functional>

namespace shardwise {

/// A style: a function that is called once for each module that the plan names. Any such function can be a style.
/// Throws: c10::NotImplementedError for a module that it does not know.
using ParallelStyle = std::function<ModuleLayouts(const torch::nn::Module&)>;

/// A Linear or an Embedding whose weight is sharded; module_layouts.h has the placements.
template <LayerSplit split>
class LayerStyle {
 public:
  /// The placement of a plain input.
  LayerStyle& input_layouts(Placement value) { return set(input_, std::move(value)); }
  /// The placement that the output gets.
  LayerStyle& output_layouts(Placement value) { return set(output_, std::move(value)); }
  /// The output is this rank's piece, plain. Unlike in Python, false by default, because a module that is not called by forward() returns a DTensor,
  /// too.
  LayerStyle& use_local_output(bool value) { return set(use_local_output_, value); }

  ModuleLayouts operator()(const torch::nn::Module& module) const;

 private:
  template <class Member, class Value>
  LayerStyle& set(Member& member, Value value) {
    member = std::move(value);
    return *this;
  }

  std::optional<Placement> input_, output_;
  bool use_local_output_ = false;
};

/// Each rank has some output features of a Linear, or some columns of an Embedding. Plain inputs are replicas; the output stays sharded
/// along its last dim. Features need not divide by the number of ranks. They are divided as output_layouts() divides dim -1.
using ColwiseParallel = LayerStyle<LayerSplit::kColwise>;

/// Each rank has some input features of a Linear, or some rows of an Embedding; the results are sums. A plain input of a Linear has this rank's
/// features, divided as input_layouts() divides dim -1; plain ids of an Embedding are equal on all ranks. The output becomes a replica, by an all-reduce, or gets the placement of
/// output_layouts().
using RowwiseParallel = LayerStyle<LayerSplit::kRowwise>;

/// A norm, a dropout or another module whose output at a position depends on its input at that position alone. Parameters are replicas. The input is
/// sharded along `sequence_dim`; a plain input has this rank's positions. The output keeps that sharding, so it costs no message.
class SequenceParallel {
 public:
  explicit SequenceParallel(int64_t sequence_dim = 1, bool use_local_output = false)
      : sequence_dim_(sequence_dim), use_local_output_(use_local_output) {}
  ModuleLayouts operator()(const torch::nn::Module& module) const;

 private:
  int64_t sequence_dim_;
  bool use_local_output_;
};

using MaybeLayouts = std::vector<std::optional<Placement>>;

/// Lays out the inputs, or the outputs, of a module that is called by forward(). Plain tensors are placed as `layouts`, and all tensors get
/// `desired_layouts`; nullopt leaves a tensor unchanged. By default inputs stay distributed, and outputs become this rank's pieces.
/// Throws: c10::ValueError if the two lists differ in length.
template <bool of_inputs>
class PrepareModule {
 public:
  PrepareModule(const MaybeLayouts& layouts, const MaybeLayouts& desired_layouts, bool use_local_output = !of_inputs);
  ModuleLayouts operator()(const torch::nn::Module& module) const;

 private:
  std::vector<ValueLayout> layouts_;
  bool use_local_output_;
};
using PrepareModuleInput = PrepareModule<true>;
using PrepareModuleOutput = PrepareModule<false>;

}  // namespace shardwise
