// shardwise/module_calls.h: what forward() does around the forward of a module. A table by module keeps it: torch::nn::Module has no member for it.
#pragma once

#include "shardwise/module_tensors.h"
#include "shardwise/parallel_style.h"
#include "wrappers/fsdp/gathered_unit.h"

#include "runtime/api/dtensor.h"
#include "runtime/api/forward_scope.h"

#include <memory>
#include <string>
#include <vector>

namespace shardwise {

/// A parameter that is gathered for the time of its module's forward.
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
  std::vector<GatheredParameter> unit;  // of fully_shard()
  bool reshards_unit = true;  // what was gathered is dropped after the forward, and gathered again for the backward
  bool is_gathered = false;   // the unit's whole parameters are in their places now
  std::shared_ptr<ComparedCalls> compared;  // made by the first call
};

/// Null for a module of which nothing is known. Cost: a lock and a look-up.
std::shared_ptr<CallLayouts> call_layouts_of(const torch::nn::Module& module);
/// The same, made where there is none. Pre: a std::shared_ptr owns `module`.
CallLayouts& make_call_layouts(torch::nn::Module& module, const MeshPtr& mesh);

/// Takes `module` and those inside it for this thread's World, until that ends. Throws: c10::ValueError where another thread's has one of them,
/// or made the mesh: ranks that are threads of one process would write to one module.
void claim_modules(const char* op, torch::nn::Module& module, const DeviceMesh& mesh);

/// One call. It ends, and parameters are back in their places, with this object, also by an exception.
class ModuleCall {
 public:
  explicit ModuleCall(torch::nn::Module& module);
  ~ModuleCall();
  ModuleCall(const ModuleCall&) = delete;
  ModuleCall& operator=(const ModuleCall&) = delete;

  /// Lays out the inputs in place. `inputs`: the positional arguments in their order, null for those that are no tensors; `others`: what of
  /// these the ranks compare, beside the inputs that stay plain.
  void enter(const std::vector<at::Tensor*>& inputs, std::vector<ForwardArgument> others);
  /// After a forward that succeeded, before its outputs are laid out. `gives_known_outputs`: each tensor that it gave will be passed to output().
  void leave(bool gives_known_outputs);
  at::Tensor output(const at::Tensor& tensor, size_t position) const;

 private:
  void lay_out_batch(const std::vector<at::Tensor*>& inputs) const;
  void gather();
  void restore();

  torch::nn::Module& module_;
  std::shared_ptr<CallLayouts> layouts_;
  bool is_open_ = false;
  std::vector<at::Tensor> sharded_;  // the unit's parameters while others are in their places
  std::shared_ptr<GatheredUnit> dropped_;
};

}  // namespace shardwise
