#include "python/bindings.h"
#include "python/package.h"
#include "python/scope.h"
#include "python/torch_world.h"
#include "runtime/comm/given_groups.h"
#include "runtime/tensor/device_mesh.h"

#include <torch/csrc/Exceptions.h>
#include <torch/csrc/distributed/c10d/GroupRegistry.hpp>

#include <algorithm>
#include <memory>

namespace shardwise {
namespace {

using GroupNames = std::map<std::vector<int64_t>, std::string>;

GivenGroups::ByRanks groups_called(const GroupNames& names) {
  GivenGroups::ByRanks result;
  for (const auto& [ranks, name] : names) {
    auto process_group = c10d::resolve_process_group(name);
    const int64_t index = process_group->getRank();
    result[ranks] = std::make_shared<Group>(Group{std::move(process_group), ranks, index});
  }
  return result;
}

c10::intrusive_ptr<c10d::ProcessGroup> make_by_members(const std::vector<int64_t>& ranks, const Group* like) {
  const py::gil_scoped_acquire gil;
  const auto name = like && like->process_group ? like->process_group->getGroupName() : std::string();
  return c10d::resolve_process_group(package().group_by_members(ranks, name).cast<std::string>());
}

/// GivenGroups as a `with` block.
class PyGivenGroups {
 public:
  explicit PyGivenGroups(GroupNames names) : names_(std::move(names)) {}
  void enter() {
    python_world();  // closes the groups of a world that has ended
    groups_ = std::make_unique<GivenGroups>(groups_called(names_));
  }
  void exit() { groups_.reset(); }

 private:
  GroupNames names_;
  std::unique_ptr<GivenGroups> groups_;
};

}  // namespace

void bind_given_groups(py::module_& module) {
  GivenGroups::set_maker(&make_by_members);
  using WithoutGroups = PyScope<GivenGroups, std::shared_ptr<World>>;
  bind_scope<GivenGroups, std::shared_ptr<World>>(
      module, "without_groups",
      "A `with` block in which meshes are made without groups: coordinates and layouts, and an error where they are to "
      "communicate. They are of this rank of its world, of the world of `mesh`, or in a process that is no rank of "
      "`rank` of `n_ranks`.")
      .def(py::init([] { return std::make_unique<WithoutGroups>(nullptr); }))
      .def(py::init([](const DeviceMesh& mesh) { return std::make_unique<WithoutGroups>(mesh.world()); }),
           py::arg("mesh"))
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
  py::class_<PyGivenGroups>(module, "given_groups",
                            "A `with` block in which meshes are made over groups of torch.distributed, by their names, "
                            "for their ranks (ascending).")
      .def(py::init<GroupNames>(), py::arg("names"))
      .def("__enter__", torch::wrap_pybind_function(&PyGivenGroups::enter))
      .def("__exit__", [](PyGivenGroups& self, const py::args&) { self.exit(); });
}

}  // namespace shardwise
