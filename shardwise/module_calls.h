// shardwise/module_calls.h: what forward() has to do around the forward of a module: known by module, as torch::nn's have no room for it.
#pragma once

#include "shardwise/module_tensors.h"
#include "shardwise/parallel_style.h"

#include "runtime/api/dtensor.h"
#include "runtime/api/forward_scope.h"

#include <memory>
#include <string>
#include <vector>

namespace shardwise {

/// A parameter of a unit that is gathered as a whole for the time of its forward.
struct GatheredParameter {
  TiedPlaces places;
  Placements placements;  // during the forward
};

/// How calls of one module are laid out.
struct CallLayouts {
  MeshPtr mesh;
  int64_t mesh_dim = 0;                 // of the styles
  std::vector<ModuleLayouts> styles;    // in the order in which they were applied
  std::vector<int64_t> batch_dims;      // mesh dims along which the program's plain inputs are parts of a batch (dim 0)
  std::vector<GatheredParameter> unit;  // of fully_shard() without reshard_after_forward
  bool is_gathered = false;             // the unit's whole parameters are in their places now
};

/// Null for a module of which nothing is known. Cost: a lock and a look-up.
std::shared_ptr<CallLayouts> call_layouts_of(const torch::nn::Module& module);
/// The same, made where there is none. Pre: a std::shared_ptr owns `module`.
CallLayouts& make_call_layouts(torch::nn::Module& module, const MeshPtr& mesh);

/// In the place of an argument that cannot be looked into: it has no values to compare.
at::Tensor unknown_value();

/// One call. It ends, and parameters are back in their places, with this object, also by an exception.
class ModuleCall {
 public:
  explicit ModuleCall(torch::nn::Module& module);
  ~ModuleCall();
  ModuleCall(const ModuleCall&) = delete;
  ModuleCall& operator=(const ModuleCall&) = delete;

  /// Lays out the inputs in place. `inputs`: the positional arguments in their order, null for those that are no tensors; `others`: what of
  /// these the ranks compare where a plain tensor meets a distributed one.
  void enter(const std::vector<at::Tensor*>& inputs, std::vector<ForwardArgument> others);
  /// After the forward, before its outputs are laid out.
  void leave();
  at::Tensor output(const at::Tensor& tensor, size_t position) const;

 private:
  void lay_out_batch(const std::vector<at::Tensor*>& inputs) const;
  void gather();

  torch::nn::Module& module_;
  std::shared_ptr<CallLayouts> layouts_;
  bool is_open_ = false;
  std::vector<at::Tensor> sharded_;  // the unit's parameters while others are in their places
};

}  // namespace shardwise
