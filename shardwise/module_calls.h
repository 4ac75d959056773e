// shardwise/module_calls.h: the work of forward() before and after the forward of a module. Its settings are in a table by module, because
// torch::nn::Module has no member for them.
#pragma once

#include "shardwise/module_unit.h"
#include "shardwise/parallel_style.h"

#include "runtime/api/dtensor.h"
#include "runtime/api/forward_scope.h"

#include <memory>
#include <vector>

namespace shardwise {

/// How calls of one module are laid out.
struct CallLayouts {
  MeshPtr mesh;                       // of the styles, and of distributed tensors in the forward; null without any
  std::vector<ModuleLayouts> styles;  // in the order in which they were applied
  std::shared_ptr<ModuleUnit> unit;   // of fully_shard(); null without
  std::shared_ptr<ComparedCalls> compared;  // made by the first call
};

/// The layouts of calls of `module`; null if it has none. Cost: a lock and a look-up.
std::shared_ptr<CallLayouts> call_layouts_of(const torch::nn::Module& module);
/// The same, made if there is none; its mesh, if it has none yet, is `mesh`, which may be null.
/// Throws: c10::ValueError if no std::shared_ptr owns `module`.
CallLayouts& make_call_layouts(torch::nn::Module& module, const MeshPtr& mesh);

/// Claims `module` and its submodules for this thread's World while that lives. Throws: c10::ValueError if the World of another thread has claimed
/// one of them or made the mesh, because ranks that are threads of one process would write to the same module.
void claim_modules(const char* op, torch::nn::Module& module, const DeviceMesh& mesh);

/// One call of a module. The destructor ends the call and puts sharded parameters back, also after an exception.
class ModuleCall {
 public:
  explicit ModuleCall(torch::nn::Module& module);
  ~ModuleCall();
  C10_DISABLE_COPY_AND_ASSIGN(ModuleCall);

  /// Lays out the inputs in place. `inputs`: the positional arguments in their order, null for arguments that are no tensors. `tensors`: all tensors
  /// in the arguments. `others`: the parts of arguments that are no tensors that the ranks compare, in addition to inputs that stay plain.
  void enter(const std::vector<at::Tensor*>& inputs, const std::vector<at::Tensor*>& tensors,
             std::vector<ForwardArgument> others);
  /// The output at `position` as the styles lay it out.
  at::Tensor output(const at::Tensor& tensor, size_t position) const;
  /// Called after a successful forward. `outputs`: all tensors in its result. `are_all`: false if it may have others.
  void leave(const std::vector<at::Tensor*>& outputs, bool are_all);

 private:
  void lay_out(const std::vector<at::Tensor*>& inputs) const;

  torch::nn::Module& module_;
  std::shared_ptr<CallLayouts> layouts_;
  bool is_in_unit_ = false;
  bool is_in_scope_ = false;
};

}  // namespace shardwise
