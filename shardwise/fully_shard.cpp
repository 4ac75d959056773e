#include "shardwise/fully_shard.h"

#include "shardwise/module_calls.h"
#include "text/check.h"
#include "wrappers/fsdp/taken_parameters.h"

#include <torch/nn/modules/container/moduledict.h>
#include <torch/nn/modules/container/modulelist.h>

#include <algorithm>
#include <unordered_map>

namespace shardwise {
namespace {

using torch::nn::Module;
using Modules = std::vector<std::shared_ptr<Module>>;

std::shared_ptr<ModuleUnit> unit_of(const Module& module) {
  const auto layouts = call_layouts_of(module);
  return layouts ? layouts->unit : nullptr;
}

void check_modules(const Modules& modules, const DeviceMesh& mesh) {
  TORCH_CHECK_VALUE(!modules.empty(), "[fully_shard] the list has no modules. Give at least one.");
  for (const auto& each : modules) {
    TORCH_CHECK_VALUE(each, "[fully_shard] the list has a module that is null. Leave it out.");
    claim_modules("fully_shard", *each, mesh);
    const bool is_container = dynamic_cast<const torch::nn::ModuleListImpl*>(each.get()) ||
                              dynamic_cast<const torch::nn::ModuleDictImpl*>(each.get());
    SW_CHECK_VALUE(!is_container,
                   "[fully_shard] {} has no forward, before which its parameters could be gathered. Call fully_shard "
                   "on the modules in it.",
                   kind_of(*each));
    SW_CHECK_VALUE(!unit_of(*each), "[fully_shard] {} is fully sharded already. Call fully_shard once per module.",
                   kind_of(*each));
  }
}

/// The parameters that a call takes, each with all its places in the modules.
std::vector<TiedPlaces> places_in(const Modules& modules, const std::vector<std::shared_ptr<ModuleUnit>>& inner,
                                  const std::vector<at::Tensor>& ignored) {
  std::vector<TiedPlaces> result;
  std::unordered_map<const c10::TensorImpl*, size_t> known;
  for (const auto& module : modules)
    for (TiedPlaces& places : parameters_of(*module)) {
      const at::Tensor& parameter = places[0].tensor();
      if (std::ranges::any_of(ignored, [&](const at::Tensor& each) { return each.is_same(parameter); }) ||
          std::ranges::any_of(inner, [&](const auto& unit) { return unit->has(parameter); }))
        continue;
      check_not_taken(places[0].full_name(), parameter);
      check_replaceable("fully_shard", places);
      const auto [at, is_new] = known.emplace(parameter.unsafeGetTensorImpl(), result.size());
      if (is_new) result.emplace_back();
      result[at->second].insert(result[at->second].end(), places.begin(), places.end());
    }
  return result;
}

}  // namespace

void fully_shard(const Modules& modules, const Mesh& mesh, const FullyShardOptions& options) {
  const auto settings = std::make_shared<GroupSchedule>();
  settings->set_reshard_after_forward(options.reshard_after_forward, *mesh);
  check_modules(modules, *mesh);
  MeshPtr beside;  // of tensor parallelism
  std::vector<std::shared_ptr<ModuleUnit>> inner;
  for (const auto& module : modules)
    for (const auto& item : module->named_modules())
      if (const auto layouts = call_layouts_of(*item.value())) {
        if (!beside) beside = layouts->mesh;
        if (layouts->unit) inner.push_back(layouts->unit);
      }
  const auto places = places_in(modules, inner, options.ignored_params);
  SW_CHECK_VALUE(
      !places.empty() || !inner.empty(),
      "[fully_shard] {} has no parameters to shard, or all of them are in ignored_params. Leave the call out.",
      kind_of(*modules[0]));
  for (const TiedPlaces& each : places)
    if (const at::Tensor& parameter = each[0].tensor(); !beside && is_dtensor(parameter))
      beside = spec_of(parameter)->mesh();
  const auto unit = ModuleUnit::create(modules, places, mesh, settings, options);
  for (const auto& each : inner) settings->schedule()->take(*each->settings()->schedule());
  for (const auto& module : modules) make_call_layouts(*module, beside).unit = unit;
}

void fully_shard(Module& module, const Mesh& mesh, const FullyShardOptions& options) {
  make_call_layouts(module, nullptr);  // or says that no std::shared_ptr owns it
  fully_shard(Modules{module.shared_from_this()}, mesh, options);
}

}  // namespace shardwise
