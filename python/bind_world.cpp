#include "python/casters.h"
#include "python/package.h"
#include "python/scope.h"
#include "runtime/api/rank_generator.h"
#include "runtime/comm/agreement.h"
#include "runtime/comm/clock_offsets.h"
#include "runtime/comm/collectives.h"
#include "runtime/comm/communication.h"
#include "runtime/comm/given_groups.h"
#include "runtime/comm/late_group.h"
#include "text/check.h"
#include "threads/thread_ranks.h"
#include "threads/thread_world.h"

#include <c10/util/ScopeExit.h>
#include <unistd.h>
#include <torch/csrc/distributed/c10d/GroupRegistry.hpp>

#include <algorithm>
#include <memory>
#include <optional>

namespace shardwise {
namespace {

/// The group called `name` in torch.distributed. The extension modules share no pybind11 types, so groups are passed by name.
c10::intrusive_ptr<c10d::ProcessGroup> group_by_name(const std::string& name) {
  return c10d::resolve_process_group(name);
}

/// A new group of torch.distributed; null on non-members.
c10::intrusive_ptr<c10d::ProcessGroup> new_group(const std::vector<int64_t>& ranks) {
  py::gil_scoped_acquire gil;
  const auto name = package().new_group(ranks).cast<std::optional<std::string>>();
  return name ? group_by_name(*name) : nullptr;
}

/// A group of `ranks` that these make late, without the others; null on the others.
c10::intrusive_ptr<c10d::ProcessGroup> late_group(int64_t rank, const std::vector<int64_t>& ranks,
                                                  const std::shared_ptr<GroupRecord>& making) {
  const auto own = std::ranges::find(ranks, rank);
  if (own == ranks.end()) return nullptr;
  const auto make = [=] {
    const GroupPtr everyone = python_world()->everyone();
    Communication communication({everyone->process_group, everyone->ranks, everyone->index, making},
                                {.name = "make a group", .by_all = false});
    auto made = communication.launch([&] { return new_group(ranks); });
    communication.finish();
    return made;
  };
  return c10::make_intrusive<LateGroup>(own - ranks.begin(), static_cast<int64_t>(ranks.size()), make);
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

Known& known = *new Known;  // never destroyed: a backend's threads may outlive the statics they use

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
    std::lock_guard lock(known.mutex);
    if (world && world != known.world) return world;  // ranks as threads, or a World made in C++
  }
  int64_t rank = 0;
  bool is_by_members = false;
  c10::intrusive_ptr<c10d::ProcessGroup> everyone;
  {
    py::gil_scoped_acquire gil;
    const py::object group = package().default_group();
    if (group.is_none()) return World::current();
    rank = group.attr("rank")().cast<int64_t>();
    everyone = group_by_name(group.attr("group_name").cast<std::string>());
    is_by_members = package().members_make_groups().cast<bool>();
  }
  std::shared_ptr<World> destroyed;
  {
    std::lock_guard lock(known.mutex);
    if (known.everyone == everyone) return known.world;
    known.everyone = everyone;
    destroyed = std::move(known.world);
    known.process = getpid();
    const auto late = [rank, making = std::make_shared<GroupRecord>()](const auto& ranks) {
      return late_group(rank, ranks, making);
    };
    const World::MakeGroup make_group = is_by_members ? World::MakeGroup(late) : &new_group;
    world = known.world = std::make_shared<World>(rank, everyone->getSize(), everyone, make_group, &group_by_members);
    World::set_process(world);
  }
  close(destroyed);
  return world;
}

void forget_python_world() {
  std::shared_ptr<World> world;
  {
    std::lock_guard lock(known.mutex);
    // Destroying a group waits for its threads, which a forked child does not have.
    if (known.process != getpid()) return;
    world.swap(known.world);
    known.everyone.reset();
  }
  if (world && World::maybe_current() == world) World::set_process(nullptr);
  close(world);
}

namespace {

using GroupNames = std::map<Numbers, std::string>;

GivenGroups::ByRanks groups_called(const GroupNames& names) {
  python_world();  // closes the groups of a world that has ended
  GivenGroups::ByRanks result;
  for (const auto& [ranks, name] : names) {
    auto process_group = group_by_name(name);
    const int64_t index = process_group->getRank();
    result[ranks] = std::make_shared<Group>(Group{std::move(process_group), ranks, index});
  }
  return result;
}

void bind_given_groups(py::module_& module) {
  using WithoutGroups = PyScope<GivenGroups, std::shared_ptr<World>>;
  bind_scope<GivenGroups, std::shared_ptr<World>>(
      module, "without_groups",
      "A `with` block in which meshes are made without groups: coordinates and layouts, and an error where they are to "
      "communicate. They are of this rank of its world, or in a process that is no rank of `rank` of `n_ranks`.")
      .def(py::init([] { return WithoutGroups(nullptr); }))
      .def(py::init([](int64_t rank, int64_t n_ranks) { return WithoutGroups(world_without_groups(rank, n_ranks)); }),
           py::arg("rank"), py::arg("n_ranks"));
  module.def(
      "are_groups_absent",
      [] {
        const auto* given = GivenGroups::current();
        return given && given->are_absent();
      },
      "True within such a block.");
  using WithGroups = PyScope<GivenGroups, GivenGroups::ByRanks>;
  bind_scope<GivenGroups, GivenGroups::ByRanks>(
      module, "given_groups",
      "A `with` block in which meshes are made over groups of torch.distributed, by their names, for their ranks "
      "(ascending).")
      .def(py::init([](const GroupNames& names) { return WithGroups(groups_called(names)); }), py::arg("names"));
}

void bind_thread_ranks(py::module_& module) {
  using torch::wrap_pybind_function_no_gil;
  using Seconds = std::chrono::duration<double>;
  py::class_<ThreadHub, std::shared_ptr<ThreadHub>>(module, "ThreadHub",
                                                    "The ranks of one program whose ranks are threads of this process.")
      .def(py::init([](int64_t n_ranks, double timeout, std::optional<bool> strict) {
             SW_CHECK_VALUE(timeout > 0,
                            "[run_ranks] timeout is {}: ranks wait for each other. Give seconds above 0, or math.inf.",
                            timeout);
             const Seconds patience(std::min(timeout, 1e9));
             const auto timeout_ms = std::chrono::duration_cast<std::chrono::milliseconds>(patience);
             if (!strict) return std::make_shared<ThreadHub>(n_ranks, timeout_ms);
             const bool was_strict = set_strict_threads(*strict);
             const auto restore = c10::make_scope_exit([&] { set_strict_threads(was_strict); });
             return std::make_shared<ThreadHub>(n_ranks, timeout_ms);
           }),
           py::arg("n_ranks"), py::arg("timeout"), py::arg("strict") = py::none())
      .def("enter",
           wrap_pybind_function_no_gil([](ThreadHub& hub, int64_t rank) { World::set_thread(hub.world(rank)); }),
           py::arg("rank"), "This thread is `rank` from now on.")
      .def("leave", wrap_pybind_function_no_gil([](ThreadHub&) { World::set_thread(nullptr); }),
           "This thread is no rank any more.")
      .def("finish", wrap_pybind_function_no_gil(&ThreadHub::finish), py::arg("rank"),
           "`rank` takes part no more; ranks that wait for it raise.")
      .def("abort", wrap_pybind_function_no_gil(&ThreadHub::abort), py::arg("rank"), py::arg("reason"),
           "`rank` has failed; ranks that wait for it raise. True for the first rank to fail.");
  define(module, "is_thread_rank", &World::is_thread, "Whether this thread is a rank of its own.");
  define(module, "rank_state", &rank_state, "The state of the generator that this thread's DTensors draw from.");
  define(module, "set_rank_state", &set_rank_state, py::arg("state"), "Sets the state of this thread's generator.");
  define(module, "seed_rank", &seed_rank, py::arg("seed"), "Seeds this thread's generator.");
}

}  // namespace

void bind_world(py::module_& module) {
  bind_given_groups(module);
  bind_thread_ranks(module);
  module.def(
      "has_world_of_cpp",
      [] {
        const auto world = World::maybe_current();
        const std::lock_guard lock(known.mutex);
        return world && world != known.world;
      },
      "Whether this process is a rank that torch.distributed did not make.");
  define(module, "forget_world", &forget_python_world,
         "Releases the process groups of torch.distributed, so that their threads end before the interpreter does.");
  define(
      module, "world_rank",
      [] {
        const auto world = World::maybe_current();
        return world ? world->rank() : 0;
      },
      "This rank's number; 0 where no ranks have been started.");
  define(
      module, "clock_offsets", [] { return clock_offsets(*python_world()->everyone()); },
      "Nanoseconds by which each rank's clock is ahead of that of rank 0. Collective over all ranks.");
  module.def(
      "gathered_texts",
      [](const std::string& text) {
        std::vector<std::string> texts;
        {
          const py::gil_scoped_release no_gil;
          texts = gathered_texts(*python_world()->everyone(), text);
        }
        std::vector<py::bytes> result(texts.begin(), texts.end());
        return result;
      },
      py::arg("text"), "The texts of all ranks, on rank 0; empty on all other ranks. Collective.");
  define(
      module, "told_by_rank_0",
      [](int64_t number) { return all_gather_numbers(*python_world()->everyone(), {number})[0][0]; }, py::arg("number"),
      "The number of rank 0, on all ranks. Collective.");
}

}  // namespace shardwise
