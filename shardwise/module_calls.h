// shardwise/module_calls.h: the work of forward() before and after the forward of a module. Its settings are in a table by module, because
// torch::nn::Module has no member for them.
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
  int64_t mesh_dim = 0;                 // mesh dim of the styles
  std::vector<ModuleLayouts> styles;    // in the order in which they were applied
  std::vector<int64_t> batch_dims;      // mesh dims along which the program's plain inputs are parts of a batch (dim 0)
  std::vector<GatheredParameter> unit;  // parameters of a fully_shard() unit
  bool reshards_unit = true;  // gathered parameters are dropped after the forward, and gathered again for the backward
  bool is_gathered = false;   // the unit's whole parameters are in the module now
  std::shared_ptr<ComparedCalls> compared;  // made by the first call
};

/// The layouts of calls of `module`; null if it has none. Cost: a lock and a look-up.
std::shared_ptr<CallLayouts> call_layouts_of(const torch::nn::Module& module);
/// The same, made if there is none. Pre: a std::shared_ptr owns `module`.
CallLayouts& make_call_layouts(torch::nn::Module& module, const MeshPtr& mesh);

/// Claims `module` and its submodules for this thread's World while that lives. Throws: c10::ValueError if the World of another thread has claimed
/// one of them or made the mesh, because ranks that are threads of one process would write to the same module.
void claim_modules(const char* op, torch::nn::Module& module, const DeviceMesh& mesh);

/// One call of a module. The destructor ends the call and puts sharded parameters back, also after an exception.
class ModuleCall {
 public:
  explicit ModuleCall(torch::nn::Module& module);
  ~ModuleCall();
  ModuleCall(const ModuleCall&) = delete;
  ModuleCall& operator=(const ModuleCall&) = delete;

  /// Lays out the inputs in place. `inputs`: the positional arguments in their order, null for arguments that are no tensors. `others`: the parts of
  /// such arguments that the ranks compare, in addition to inputs that stay plain.
  void enter(const std::vector<at::Tensor*>& inputs, std::vector<ForwardArgument> others);
  /// Called after a successful forward, before its outputs are laid out. `gives_known_outputs`: every tensor in the result will be passed to
  /// output().
  void leave(bool gives_known_outputs);
  at::Tensor output(const at::Tensor& tensor, size_t position) const;

 private:
  void lay_out_batch(const std::vector<at::Tensor*>& inputs) const;
  void gather();
  void restore();

  torch::nn::Module& module_;
  std::shared_ptr<CallLayouts> layouts_;
  bool is_open_ = false;
  std::vector<at::Tensor> sharded_;  // the unit's sharded parameters while whole ones are in the module
  std::shared_ptr<GatheredUnit> dropped_;
};

}  // namespace shardwise
