#include "python/bindings.h"
#include "python/torch_world.h"

#include <torch/csrc/Exceptions.h>
#include <torch/csrc/distributed/c10d/GroupRegistry.hpp>

#include <numeric>

namespace shardwise {
namespace {

constexpr const char* kModule = "shardwise._torch_groups";

/// The group called `name` in torch.distributed. Names cross between the modules, no pybind11 type does.
c10::intrusive_ptr<c10d::ProcessGroup> group_by_name(const std::string& name) {
  return c10d::resolve_process_group(name);
}

/// torch.distributed.new_group, called by every rank of the world in one order; null on non-members.
c10::intrusive_ptr<c10d::ProcessGroup> new_group(const std::vector<int64_t>& ranks) {
  py::gil_scoped_acquire gil;
  const auto name = py::module_::import(kModule).attr("new_group")(ranks).cast<std::optional<std::string>>();
  return name ? group_by_name(*name) : nullptr;
}

/// The World that torch.distributed stood for when it was last asked.
struct Known {
  std::mutex mutex;
  std::shared_ptr<World> world;
  c10::intrusive_ptr<c10d::ProcessGroup> everyone;
};

Known& known() {
  static auto* const slot = new Known;  // never destroyed: a backend's threads may outlive the statics they use
  return *slot;
}

}  // namespace

std::shared_ptr<World> python_world() {
  auto world = World::maybe_current();
  {
    std::lock_guard lock(known().mutex);
    if (world && world != known().world) return world;  // ranks as threads, or a World made in C++
  }
  int64_t rank = 0;
  c10::intrusive_ptr<c10d::ProcessGroup> everyone;
  {
    py::gil_scoped_acquire gil;
    const auto group = py::module_::import(kModule).attr("default_group")();
    if (group.is_none()) return World::current();
    rank = group.attr("rank")().cast<int64_t>();
    everyone = group_by_name(group.attr("group_name").cast<std::string>());
  }
  std::lock_guard lock(known().mutex);
  if (known().everyone != everyone) {
    known().everyone = everyone;
    known().world = std::make_shared<World>(rank, everyone->getSize(), everyone, &new_group);
    World::set_process(known().world);
  }
  return known().world;
}

void forget_python_world() {
  std::lock_guard lock(known().mutex);
  if (known().world && World::maybe_current() == known().world) World::set_process(nullptr);
  known().world.reset();
  known().everyone.reset();
}

void bind_world(py::module_& module) {
  module.def("forget_world", torch::wrap_pybind_function_no_gil(&forget_python_world),
             "Lets go of the process group of torch.distributed; called when the interpreter ends.");
}

}  // namespace shardwise
