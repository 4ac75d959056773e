#include "python/package.h"
#include "python/torch_world.h"

#include <torch/csrc/Exceptions.h>
#include <unistd.h>
#include <torch/csrc/distributed/c10d/GroupRegistry.hpp>

#include <optional>

namespace shardwise {
namespace {

/// The group called `name` in torch.distributed. The extension modules share no pybind11 types, so groups are passed by name.
c10::intrusive_ptr<c10d::ProcessGroup> group_by_name(const std::string& name) {
  return c10d::resolve_process_group(name);
}

/// A new group of torch.distributed, called by every rank of the world in one order; null on non-members.
c10::intrusive_ptr<c10d::ProcessGroup> new_group(const std::vector<int64_t>& ranks) {
  py::gil_scoped_acquire gil;
  const auto name = package().new_group(ranks).cast<std::optional<std::string>>();
  return name ? group_by_name(*name) : nullptr;
}

/// The same, called by `ranks` alone.
c10::intrusive_ptr<c10d::ProcessGroup> group_by_members(const std::vector<int64_t>& ranks, const Group* like) {
  const py::gil_scoped_acquire gil;
  const auto name = like ? like->process_group->getGroupName() : std::string();
  return group_by_name(package().group_by_members(ranks, name).cast<std::string>());
}

/// The World of torch.distributed's default group, as of the last call.
struct Known {
  std::mutex mutex;
  std::shared_ptr<World> world;
  c10::intrusive_ptr<c10d::ProcessGroup> everyone;
  pid_t process = 0;  // the process that made the World
};

Known& known() {
  static auto* const slot = new Known;  // never destroyed: a backend's threads may outlive the statics they use
  return *slot;
}

/// Releases the GIL, because closing waits for the backend's threads, which need the GIL to free tensors that Python knows.
void close(const std::shared_ptr<World>& world) {
  if (!world) return;
  std::optional<py::gil_scoped_release> no_gil;
  if (PyGILState_Check()) no_gil.emplace();
  world->close();
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
    const py::object group = package().default_group();
    if (group.is_none()) return World::current();
    rank = group.attr("rank")().cast<int64_t>();
    everyone = group_by_name(group.attr("group_name").cast<std::string>());
  }
  std::shared_ptr<World> destroyed;
  {
    std::lock_guard lock(known().mutex);
    if (known().everyone == everyone) return known().world;
    known().everyone = everyone;
    destroyed = std::move(known().world);
    known().process = getpid();
    world = known().world = std::make_shared<World>(rank, everyone->getSize(), everyone, &new_group, &group_by_members);
    World::set_process(world);
  }
  close(destroyed);
  return world;
}

void forget_python_world() {
  std::shared_ptr<World> world;
  {
    std::lock_guard lock(known().mutex);
    // Destroying a group waits for its threads, which a forked child does not have.
    if (known().process != getpid()) return;
    world.swap(known().world);
    known().everyone.reset();
  }
  if (world && World::maybe_current() == world) World::set_process(nullptr);
  close(world);
}

void bind_world(py::module_& module) {
  module.def(
      "has_world_of_cpp",
      [] {
        const auto world = World::maybe_current();
        const std::lock_guard lock(known().mutex);
        return world && world != known().world;
      },
      "Whether this process is a rank that torch.distributed did not make.");
  module.def(
      "forget_world", torch::wrap_pybind_function_no_gil(&forget_python_world),
      "Releases the process groups of torch.distributed, so that their threads end before the interpreter does.");
}

}  // namespace shardwise
