// shardwise/parallel_style.h: torch's styles for parallelize_module, as functions of the module.
//
//   sw::ColwiseParallel()                                   // output features over the ranks
//   sw::RowwiseParallel().output_layouts(sw::Shard(1))      // input features; the sums reduce-scattered along the sequence
//
// A torch::nn module has no hooks. A style always shards the parameters. Its layouts of inputs and outputs take effect if the module is called by
// forward() of shardwise/forward.h. In other calls, operators take DTensors in any layout and give DTensors, by their rules: the values are the
// same, and fewer or more bytes may be sent.
#pragma once

#include "placements/placement.h"

#include <torch/nn/module.h>

#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace shardwise {

/// How one input or output of a module is laid out along the mesh dim of the style.
struct ValueLayout {
  std::optional<Placement> of_plain = {};  // placement of a plain tensor: a piece or a replica; nullopt: unchanged
  std::optional<Placement> wanted = {};    // placement that it gets; nullopt: unchanged
  std::optional<int64_t> whole_size = {};  // total size of the dim that of_plain shards, if the module knows it
};

/// The layouts of one module, by a style.
struct ModuleLayouts {
  std::vector<std::pair<std::string, Placement>> parameters = {};  // by name in the module
  std::vector<ValueLayout> inputs = {};                            // by position; further inputs are unchanged
  std::vector<ValueLayout> outputs = {};                           // likewise
  bool use_local_inputs = false;                                   // the module gets plain pieces
  bool use_local_output = false;                                   // the caller gets plain pieces
};

/// A style: a function that is called once for each module that the plan names. Any such function can be a style.
/// Throws: c10::NotImplementedError for a module that it does not know.
using ParallelStyle = std::function<ModuleLayouts(const torch::nn::Module&)>;

/// Options that ColwiseParallel and RowwiseParallel share.
template <class Self>
class LayerStyle {
 public:
  /// The placement of a plain input.
  Self& input_layouts(Placement value) { return set(input_, std::move(value)); }
  /// The placement that the output gets.
  Self& output_layouts(Placement value) { return set(output_, std::move(value)); }
  /// The output is this rank's piece, plain. Unlike in Python, false by default, because a module that is not called by forward() returns a DTensor,
  /// too.
  Self& use_local_output(bool value) { return set(use_local_output_, value); }

 protected:
  template <class Value>
  Self& set(std::optional<Value>& member, Value value) {
    member = std::move(value);
    return static_cast<Self&>(*this);
  }

  /// A Linear's weight is sharded along `weight_dim`, an Embedding's along the other dim; inputs become `needed`, and outputs `output`.
  ModuleLayouts layouts(const char* style, const torch::nn::Module& module, int64_t weight_dim, const Placement& bias,
                        const Placement& needed, const Placement& output) const;

  std::optional<Placement> input_, output_;
  std::optional<bool> use_local_output_;
};

/// Each rank has some output features of a Linear, or some columns of an Embedding. Plain inputs are replicas; the output stays sharded
/// along its last dim. Features need not divide by the number of ranks.
class ColwiseParallel : public LayerStyle<ColwiseParallel> {
 public:
  ModuleLayouts operator()(const torch::nn::Module& module) const;
};

/// Each rank has some input features of a Linear, or some rows of an Embedding; the results are sums. A plain input of a Linear has this rank's
/// features; plain ids of an Embedding are equal on all ranks. The output becomes a replica, by an all-reduce, or gets the placement of
/// output_layouts().
class RowwiseParallel : public LayerStyle<RowwiseParallel> {
 public:
  ModuleLayouts operator()(const torch::nn::Module& module) const;
};

/// A norm, a dropout or another module whose output at a position depends on its input at that position alone. Parameters are replicas. The input is
/// sharded along `sequence_dim` (a plain input has this rank's positions), and so is the output.
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
