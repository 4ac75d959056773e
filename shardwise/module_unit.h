// shardwise/module_unit.h: the parameters that a call of fully_shard() took, and their places in modules. The counterpart of Python's Unit.
#pragma once

#include "shardwise/fully_shard.h"
#include "shardwise/module_tensors.h"

#include <memory>
#include <vector>

namespace shardwise {

class ModuleUnit : public std::enable_shared_from_this<ModuleUnit> {
 public:
  /// Splits the parameters at `places` and puts this rank's parts there. Throws: as ParameterGroup::create(), before anything is done.
  static std::shared_ptr<ModuleUnit> create(const std::vector<std::shared_ptr<torch::nn::Module>>& modules,
                                            std::vector<TiedPlaces> places, const Mesh& mesh,
                                            std::shared_ptr<GroupSchedule> settings, const FullyShardOptions& options);

  const MeshPtr& mesh() const { return settings_->group()->data().mesh; }
  const std::shared_ptr<GroupSchedule>& settings() const { return settings_; }
  /// True for one of the unit's parameters, sharded or whole.
  bool has(const at::Tensor& parameter) const;

  /// enter_call() and leave_call() (wrappers/fsdp/unit_call.h), with the policy's casts.
  void enter(const torch::nn::Module& module, const std::vector<at::Tensor*>& inputs);
  void leave(const torch::nn::Module& module, const std::vector<at::Tensor*>& outputs, bool releases);

 private:
  ModuleUnit(std::vector<TiedPlaces> places, std::shared_ptr<GroupSchedule> settings, MixedPrecisionPolicy policy);
  void listen();
  /// Puts `tensors` into the modules that still exist.
  void put(const std::vector<at::Tensor>& tensors) const;
  /// Uses what the program has put in place of the sharded parameters, such as parameters of another dtype after module->to().
  void take_replacements();

  std::vector<TiedPlaces> places_;
  std::vector<std::vector<std::weak_ptr<torch::nn::Module>>> owners_;  // by place
  std::shared_ptr<GroupSchedule> settings_;
  std::shared_ptr<GatherSchedule> schedule_;  // the first one of the group; its owner is now the one that has taken it
  std::vector<c10::ScalarType> dtypes_;
  MixedPrecisionPolicy policy_;
};

}  // namespace shardwise
