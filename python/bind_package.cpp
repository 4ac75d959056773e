#include "python/package.h"

#include <utility>

namespace shardwise {
namespace {

Package& handed_over() {
  static auto* const package = new Package;
  return *package;
}

constexpr std::pair<const char*, py::handle Package::*> kFunctions[] = {
    {"install", &Package::install},
    {"default_group", &Package::default_group},
    {"new_group", &Package::new_group},
    {"group_by_members", &Package::group_by_members},
    {"lone_group", &Package::lone_group},
    {"members_make_groups", &Package::members_make_groups},
    {"group_of", &Package::group_of},
    {"ranks_of", &Package::ranks_of},
    {"mesh_of", &Package::mesh_of},
    {"mesh_from_torch", &Package::mesh_from_torch},
    {"current_torch_mesh", &Package::current_torch_mesh},
    {"as_local", &Package::as_local},
    {"as_piece", &Package::as_piece},
    {"as_whole", &Package::as_whole},
    {"strided_shard", &Package::strided_shard},
    {"flatten", &Package::flatten},
    {"unflatten", &Package::unflatten},
    {"have_same_context", &Package::have_same_context},
    {"says_places", &Package::says_places},
    {"holds_traced", &Package::holds_traced},
    {"symbol_values", &Package::symbol_values},
    {"fix_symbols", &Package::fix_symbols},
    {"without_symbols", &Package::without_symbols},
    {"evaluate_symbols", &Package::evaluate_symbols},
};

/// Throws: KeyError for a missing function.
void set_package(const std::string& folder, const py::kwargs& functions) {
  handed_over().folder = folder + '/';
  for (const auto& [name, member] : kFunctions) handed_over().*member = py::object(functions[name]).release();
}

}  // namespace

const Package& package() { return handed_over(); }

void bind_package(py::module_& module) {
  module.def("set_package", &set_package, py::arg("folder"),
             "Passes the folder of the package's modules and the functions that C++ calls, by name.");
}

}  // namespace shardwise
