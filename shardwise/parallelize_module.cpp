#include "shardwise/parallelize_module.h"

#include "shardwise/dtensor.h"
#include "shardwise/module_calls.h"
#include "text/check.h"

#include <fmt/ranges.h>
#include <fnmatch.h>

#include <sstream>

namespace shardwise {
namespace {

using torch::nn::Module;

struct Found {
  Module* module;
  std::string path;
};

std::vector<std::string> parts_of(const std::string& names) {
  std::vector<std::string> result;
  std::istringstream text(names);
  for (std::string part; std::getline(text, part, '.');) result.push_back(part);
  return result;
}

/// The submodules whose names fit, part by part.
std::vector<Found> matches(Module& module, const std::string& names) {
  std::vector<Found> found{{&module, ""}};
  for (const std::string& part : parts_of(names)) {
    std::vector<Found> below;
    for (const Found& parent : found)
      for (const auto& child : parent.module->named_children())
        if (fnmatch(part.c_str(), child.key().c_str(), FNM_NOESCAPE) == 0)
          below.push_back({child.value().get(), parent.path.empty() ? child.key() : parent.path + "." + child.key()});
    found = std::move(below);
  }
  return found;
}

[[noreturn]] void refuse_names(Module& module, const std::string& names) {
  constexpr size_t kShown = 20;
  std::vector<std::string> known;
  for (const auto& each : module.named_modules())
    if (!each.key().empty()) known.push_back(each.key());
  const bool has_more = known.size() > kShown;
  if (has_more) known.resize(kShown);
  SW_CHECK_VALUE(false, "[parallelize_module] the plan names '{}', and {} has no such submodule. It has {}{}.", names,
                 kind_of(module), known.empty() ? "none" : fmt::format("{}", fmt::join(known, ", ")),
                 has_more ? ", ..." : "");
}

std::string named(const Module& module, const std::string& path) {
  return path.empty() ? kind_of(module) : fmt::format("{} ({})", path, kind_of(module));
}

/// The placement of one parameter by the plan.
struct Wanted {
  TiedPlaces places;
  std::optional<Placement> placement;
  std::string named_by;  // the place that a style named
};

class ResolvedPlan {
 public:
  ResolvedPlan(Module& module, const Mesh& mesh, const ParallelizePlan& plan) {
    for (TiedPlaces& places : parameters_of(module)) wanted_.push_back({std::move(places), {}, {}});
    for (const PlanEntry& entry : plan) {
      const auto found = matches(module, entry.names);
      if (found.empty()) refuse_names(module, entry.names);
      SW_CHECK_VALUE(entry.style,
                     "[parallelize_module] the plan has an empty function as the style of '{}'. Give ColwiseParallel() "
                     "or another style, or leave it out.",
                     entry.names);
      for (const Found& each : found) {
        layouts_.emplace_back(each.module, entry.style(*each.module));
        for (const auto& [name, placement] : layouts_.back().second.parameters) want(each, name, placement);
        check_calls(each, mesh);
      }
    }
    check_not_fully_sharded(module, "");
    for (const Wanted& each : wanted_) {
      if (!each.placement) continue;
      check_replaceable("parallelize_module", each.places);
      check_fits(each, mesh);
    }
  }

  const std::vector<Wanted>& wanted() const { return wanted_; }
  const std::vector<std::pair<Module*, ModuleLayouts>>& layouts() const { return layouts_; }

 private:
  void want(const Found& module, const std::string& name, const Placement& given) {
    const std::string full_name = module.path.empty() ? name : module.path + "." + name;
    for (Wanted& each : wanted_)
      for (const ParameterPlace& place : each.places)
        if (place.module == module.module && place.name == name) return want(each, full_name, given);
    SW_CHECK_VALUE(false,
                   "[parallelize_module] a style names the parameter {}, which {} does not have. Name those that "
                   "named_parameters() lists.",
                   full_name, kind_of(*module.module));
  }

  static void want(Wanted& parameter, const std::string& full_name, const Placement& given) {
    const at::Tensor& tensor = parameter.places[0].tensor();
    SW_CHECK_VALUE(!is_dtensor(tensor),
                   "[parallelize_module] {} is distributed already. Call parallelize_module once for each parameter, "
                   "and fully_shard after it.",
                   full_name);
    const Placement placement = given.with_dim_from_zero(tensor.dim());
    SW_CHECK_VALUE(given.fits_dims(tensor.dim()),
                   "[parallelize_module] {} of shape [{}] cannot be {}: it has no such dim.", full_name,
                   fmt::join(tensor.sizes(), ", "), to_string(given));
    SW_CHECK_VALUE(!parameter.placement || *parameter.placement == placement,
                   "[parallelize_module] {} and {} are one parameter, which one style lays out as {} and another as "
                   "{}. Give styles that lay it out alike.",
                   parameter.named_by, full_name, parameter.placement ? to_string(*parameter.placement) : "",
                   to_string(placement));
    parameter.placement = placement;
    parameter.named_by = full_name;
  }

  static void check_not_fully_sharded(const Module& module, const std::string& path) {
    const auto layouts = call_layouts_of(module);
    SW_CHECK_VALUE(!layouts || !layouts->unit,
                   "[parallelize_module] {} is fully sharded over {} already. Call parallelize_module first, and "
                   "fully_shard after it.",
                   named(module, path), to_string(*layouts->unit->mesh()));
  }

  /// Checks that a module and its parameters are on one mesh.
  static void check_calls(const Found& found, const Mesh& mesh) {
    for (const auto& item : found.module->named_modules(found.path)) check_not_fully_sharded(*item.value(), item.key());
    const auto layouts = call_layouts_of(*found.module);
    const auto check = [&](const MeshPtr& present, const std::string& what) {
      SW_CHECK_VALUE(present->with_memory() == mesh->with_memory(),
                     "[parallelize_module] {} over {} already, and the plan has a style for it over {}. Use one mesh "
                     "for all styles of a module and of those inside it.",
                     what, to_string(*present), to_string(*mesh));
    };
    if (layouts && !layouts->styles.empty())
      check(layouts->mesh, fmt::format("calls of {} are laid out", named(*found.module, found.path)));
    for (const auto& item : found.module->named_parameters())
      if (is_dtensor(item.value())) check(spec_of(item.value())->mesh(), fmt::format("{} is sharded", item.key()));
  }

  /// Makes the layout that distribute_tensor() will make, for its errors.
  static void check_fits(const Wanted& parameter, const Mesh& mesh) {
    const at::Tensor& tensor = parameter.places[0].tensor();
    name_parameter("parallelize_module", parameter.named_by,
                   [&] { Layout(tensor.sizes(), mesh->grid_ptr(), {*parameter.placement}); });
  }

  std::vector<Wanted> wanted_;
  std::vector<std::pair<Module*, ModuleLayouts>> layouts_;
};

}  // namespace

void parallelize_module(Module& module, const Mesh& mesh, const ParallelizePlan& plan,
                        const ParallelizeOptions& options) {
  SW_CHECK_VALUE(
      mesh.ndim() == 1,
      "[parallelize_module] styles shard over one mesh dim, but {} has {}. Pass the dim for them to use: {}.",
      to_string(*mesh), mesh.ndim(),
      mesh.mesh_dim_names().empty() ? "a mesh with mesh_dim_names, sliced"
                                    : fmt::format("mesh[\"{}\"]", mesh.mesh_dim_names().back()));
  claim_modules("parallelize_module", module, *mesh);
  const ResolvedPlan resolved(module, mesh, plan);
  std::vector<std::pair<const Wanted*, DTensor>> sharded;  // all of them, before the first is put in place
  for (const Wanted& each : resolved.wanted()) {
    if (!each.placement) continue;
    const at::Tensor& present = each.places[0].tensor();
    const at::Tensor values = present.detach().requires_grad_(present.requires_grad());
    name_parameter("parallelize_module", each.named_by, [&] {
      sharded.emplace_back(&each, distribute_tensor(values, mesh, {*each.placement}, options.src_data_rank));
    });
  }
  for (const auto& [wanted, tensor] : sharded)
    for (const ParameterPlace& place : wanted->places) place.replace(tensor);
  make_call_layouts(module, mesh);
  for (const auto& [submodule, layouts] : resolved.layouts()) {
    CallLayouts& calls = make_call_layouts(*submodule, mesh);
    calls.mesh = mesh;
    calls.styles.push_back(layouts);
  }
}

}  // namespace shardwise
