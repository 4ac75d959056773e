#include "python/bindings.h"
#include "python/scope.h"
#include "python/torch_world.h"
#include "runtime/comm/given_groups.h"

#include <torch/csrc/distributed/c10d/GroupRegistry.hpp>

#include <memory>

namespace shardwise {
namespace {

using GroupNames = std::map<std::vector<int64_t>, std::string>;

GivenGroups::ByRanks groups_called(const GroupNames& names) {
  python_world();  // closes the groups of a world that has ended
  GivenGroups::ByRanks result;
  for (const auto& [ranks, name] : names) {
    auto process_group = c10d::resolve_process_group(name);
    const int64_t index = process_group->getRank();
    result[ranks] = std::make_shared<Group>(Group{std::move(process_group), ranks, index});
  }
  return result;
}

}  // namespace

void bind_given_groups(py::module_& module) {
  using WithoutGroups = PyScope<GivenGroups, std::shared_ptr<World>>;
  bind_scope<GivenGroups, std::shared_ptr<World>>(
      module, "without_groups",
      "A `with` block in which meshes are made without groups: coordinates and layouts, and an error where they are to "
      "communicate. They are of this rank of its world, or in a process that is no rank of `rank` of `n_ranks`.")
      .def(py::init([] { return std::make_unique<WithoutGroups>(nullptr); }))
      .def(py::init([](int64_t rank, int64_t n_ranks) {
             return std::make_unique<WithoutGroups>(world_without_groups(rank, n_ranks));
           }),
           py::arg("rank"), py::arg("n_ranks"));
  module.def(
      "are_groups_absent",
      [] {
        const auto* given = GivenGroups::current();
        return given && given->are_absent();
      },
      "True within such a block.");
  bind_scope<GivenGroups, GivenGroups::ByRanks>(
      module, "given_groups",
      "A `with` block in which meshes are made over groups of torch.distributed, by their names, for their ranks "
      "(ascending).")
      .def(py::init([](const GroupNames& names) {
             return std::make_unique<PyScope<GivenGroups, GivenGroups::ByRanks>>(groups_called(names));
           }),
           py::arg("names"));
}

}  // namespace shardwise
