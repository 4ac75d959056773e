#include "shardwise/module_unit.h"

#include "wrappers/fsdp/taken_parameters.h"
#include "wrappers/fsdp/unit_call.h"

#include <algorithm>

namespace shardwise {
namespace {

using torch::nn::Module;

void cast_floats(const std::vector<at::Tensor*>& tensors, std::optional<c10::ScalarType> dtype) {
  for (at::Tensor* const each : tensors)
    if (dtype && each->defined() && each->is_floating_point()) *each = each->to(*dtype);
}

}  // namespace

std::shared_ptr<ModuleUnit> ModuleUnit::create(const std::vector<std::shared_ptr<Module>>& modules,
                                               std::vector<TiedPlaces> places, const Mesh& mesh,
                                               std::shared_ptr<GroupSchedule> settings,
                                               const FullyShardOptions& options) {
  std::vector<std::string> names;
  std::vector<at::Tensor> parameters;
  Placements along;
  for (const TiedPlaces& each : places) {
    names.push_back(each[0].full_name());
    parameters.push_back(each[0].tensor());
    const auto placement = options.shard_placement_fn ? options.shard_placement_fn(parameters.back()) : std::nullopt;
    along.push_back(placement.value_or(default_split(parameters.back(), mesh)));
  }
  const MixedPrecisionPolicy& policy = options.mp_policy;
  const auto group = ParameterGroup::create(names, parameters, mesh, {policy.param_dtype, policy.reduce_dtype}, along);
  settings->n_modules = std::ssize(modules);
  const std::shared_ptr<ModuleUnit> unit(new ModuleUnit(std::move(places), std::move(settings), policy));
  unit->schedule_->add(unit->settings_, group);
  unit->listen();
  unit->put(group->sharded());
  for (const auto& tensors : {parameters, group->sharded()})
    for (const at::Tensor& each : tensors) note_taken(each, kind_of(*modules[0]));
  return unit;
}

ModuleUnit::ModuleUnit(std::vector<TiedPlaces> places, std::shared_ptr<GroupSchedule> settings,
                       MixedPrecisionPolicy policy)
    : places_(std::move(places)),
      settings_(std::move(settings)),
      schedule_(std::make_shared<GatherSchedule>()),
      policy_(std::move(policy)) {
  for (const TiedPlaces& each : places_)
    for (auto& owners = owners_.emplace_back(); const ParameterPlace& place : each)
      owners.push_back(place.module->weak_from_this());
}

bool ModuleUnit::has(const at::Tensor& parameter) const {
  const auto is_same = [&](const at::Tensor& each) { return each.is_same(parameter); };
  const ParameterGroup& group = *settings_->group();
  return std::ranges::any_of(group.sharded(), is_same) || std::ranges::any_of(group.leaves(), is_same);
}

void ModuleUnit::listen() {
  ParameterGroup& group = *settings_->group();
  dtypes_.clear();
  for (const at::Tensor& each : group.sharded()) dtypes_.push_back(each.scalar_type());
  group.on_exchange([self = weak_from_this(), &group](bool is_gathered) {
    if (const auto unit = self.lock()) unit->put(is_gathered ? group.leaves() : group.sharded());
  });
}

void ModuleUnit::put(const std::vector<at::Tensor>& tensors) const {
  for (size_t i = 0; i < tensors.size(); ++i)
    for (size_t k = 0; k < places_[i].size(); ++k)
      if (const auto owner = owners_[i][k].lock()) places_[i][k].replace(tensors[i]);
}

void ModuleUnit::take_replacements() {
  const ParameterGroup& group = *settings_->group();
  if (group.is_in_place()) return;
  std::vector<at::Tensor> now;
  bool have_changed = false;
  for (size_t i = 0; i < places_.size(); ++i) {
    now.push_back(owners_[i][0].expired() ? group.sharded()[i] : places_[i][0].tensor());
    have_changed |= !now[i].is_same(group.sharded()[i]) || now[i].scalar_type() != dtypes_[i];
  }
  if (!have_changed) return;
  settings_->schedule()->replace(*settings_, group.with(now));
  listen();
  put(now);
}

void ModuleUnit::enter(const Module& module, const std::vector<at::Tensor*>& inputs) {
  take_replacements();
  if (policy_.cast_forward_inputs) cast_floats(inputs, policy_.param_dtype);
  enter_call(settings_, kind_of(module), id_of(module), inputs);
}

void ModuleUnit::leave(const Module& module, const std::vector<at::Tensor*>& outputs, bool releases) {
  leave_call(settings_, id_of(module), outputs, releases);
  cast_floats(outputs, policy_.output_dtype);
}

}  // namespace shardwise
