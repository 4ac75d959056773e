#include "python/casters.h"
#include "python/py_plan.h"
#include "runtime/redistribute/execute.h"
#include "text/check.h"

#include <c10/core/DefaultDtype.h>
#include <fmt/ranges.h>

#include <chrono>
#include <numeric>

namespace shardwise {
namespace {

/// A plain tensor arrives as at::Tensor too, and spec_of() refuses it.
using Place = std::variant<at::Tensor, Layout>;
using Destination = std::variant<Place, UserPlacements>;
using Names = std::vector<std::string>;  // of mesh dims

bool is_extents(const py::object& mesh) {
  if (!py::isinstance<py::tuple>(mesh)) return false;
  for (const py::handle item : mesh)
    if (!PyLong_Check(item.ptr())) return false;
  return true;
}

constexpr int64_t kMaxRanks = int64_t{1} << 24;

/// The grid of a mesh, or a new one from extents or nested ranks.
std::shared_ptr<const RankGrid> grid_of(const py::object& mesh) {
  if (py::isinstance<DeviceMesh>(mesh) || py::hasattr(mesh, "mesh_dim_names")) return to_mesh(mesh)->grid_ptr();
  auto grid = std::make_shared<RankGrid>();
  if (is_extents(mesh)) {
    grid->shape = Dims(mesh.cast<Numbers>());
    int64_t n_ranks = 1;
    for (const int64_t extent : grid->shape) {
      SW_CHECK_VALUE(extent > 0,
                     "[layout] a mesh of extents ({}) has no ranks. Give positive extents, or the ranks as lists: [[0, "
                     "1], [2, 3]].",
                     fmt::join(grid->shape, ", "));
      SW_CHECK_VALUE(extent <= kMaxRanks / n_ranks,
                     "[layout] a mesh of extents ({}) has more than {} ranks. Give a smaller one.",
                     fmt::join(grid->shape, ", "), kMaxRanks);
      n_ranks *= extent;
    }
    grid->ranks.resize(n_ranks);
    std::iota(grid->ranks.begin(), grid->ranks.end(), 0);
  } else {
    const py::object ranks = py::module_::import("torch").attr("as_tensor")(mesh);
    SW_CHECK_TYPE(
        at::isIntegralType(ranks.cast<at::Tensor>().scalar_type(), false),
        "[layout] the mesh {} holds no ranks. Give a DeviceMesh, a tuple of extents or nested lists of ranks.",
        py::repr(mesh).cast<std::string>());
    *grid = to_grid(ranks);
  }
  check(*grid);
  return grid;
}

/// The layout on the grid, with mesh dims in the order of the splits.
Layout layout_of(c10::IntArrayRef sizes, const std::shared_ptr<const RankGrid>& grid, const UserPlacements& written) {
  const UserPlacements from_zero = resolved(written, static_cast<int64_t>(sizes.size()));
  const std::vector<int64_t> order = order_of_splits(from_zero, grid->shape);
  if (std::ranges::is_sorted(order)) return Layout(sizes, grid, from_zero.placements);
  return Layout(sizes, std::make_shared<const RankGrid>(reordered(*grid, order)),
                reordered(c10::ArrayRef<Placement>(from_zero.placements), order));
}

const Layout& layout_of(const Place& place) {
  if (const auto* layout = std::get_if<Layout>(&place)) return *layout;
  return spec_of(std::get<at::Tensor>(place))->layout();
}

Names names_of(const Place& place) {
  const auto* tensor = std::get_if<at::Tensor>(&place);
  return tensor ? spec_of(*tensor)->mesh()->names() : Names();
}

/// The layout of the destination and the names of its mesh dims. The layout is on the source's own grid if the ranks are the same, so that equal
/// grids have equal addresses.
std::pair<Layout, Names> resolved_destination(const Destination& dst, const Place& src, const Layout& source) {
  if (const auto* written = std::get_if<UserPlacements>(&dst)) {
    const auto* tensor = std::get_if<at::Tensor>(&src);
    if (!tensor) return {layout_of(source.sizes(), source.grid_ptr(), *written), {}};
    PlacedOn placed = placed_on_mesh(user_layout_of(*spec_of(*tensor)).mesh, *written, source.dim());
    return {Layout(source.sizes(), placed.mesh->grid_ptr(), std::move(placed.placements)), placed.mesh->names()};
  }
  const auto& place = std::get<Place>(dst);
  const Layout& layout = layout_of(place);
  if (!(layout.grid() == source.grid())) return {layout, names_of(place)};
  return {Layout(layout.sizes(), source.grid_ptr(), layout.placements().vec()), names_of(place)};
}

at::ScalarType dtype_of(const Place& place) {
  const auto* tensor = std::get_if<at::Tensor>(&place);
  return tensor ? tensor->scalar_type() : c10::get_default_dtype_as_scalartype();
}

std::shared_ptr<PyPlan> plan_redistribution(const Place& src, const Destination& dst,
                                            std::optional<at::ScalarType> dtype, const std::string& objective,
                                            const MaybeLinks& links, int64_t memory_cap) {
  const PlanOptions options = plan_options("plan_redistribution", objective, links, memory_cap);
  const Layout& source = layout_of(src);
  auto [destination, names] = resolved_destination(dst, src, source);
  const auto element_bytes = static_cast<int64_t>(c10::elementSize(dtype.value_or(dtype_of(src))));
  const auto start = std::chrono::steady_clock::now();
  Plan made = plan(source, destination, element_bytes, options);
  const std::chrono::duration<double, std::micro> planning = std::chrono::steady_clock::now() - start;
  return std::make_shared<PyPlan>(std::move(made), MeshNames{names_of(src), std::move(names)}, planning.count());
}

constexpr const char* kLayout =
    R"(Which rank holds which boxes of a tensor of `shape`. It is computed without processes or communication.

`mesh`: a DeviceMesh; a tuple of extents such as (2, 4), whose ranks are 0, 1, 2, ...; or nested lists of ranks such as [[0, 1], [2, 3]].
`placements`: one per mesh dim. With torch's _StridedShard, the mesh dims are put into the order of the splits. Raises ValueError or
IndexError for placements that do not fit.

>>> layout = sw.Layout((10, 3), [0, 1, 2, 3], [sw.Shard(0, sizes=[1, 4, 0, 5])])
>>> layout
Layout([10, 3] as [Shard(0, sizes=[1, 4, 0, 5])] on 4 ranks)
>>> layout.boxes(1)  # (offsets, sizes)
[([1, 0], [4, 3])])";

constexpr const char* kPlan =
    "The steps from one layout of a tensor to another, and what they cost each rank. Making a plan sends nothing.\n\n"
    "str(plan): `route | rounds | received, bound, ratio | most loaded rank | buffers | planning time`, in bytes.\n"
    "Figures over all ranks are computed at first use; summary(n_samples) computes them for fewer ranks.\n\n"
    ">>> plan = sw.plan_redistribution(sw.Layout((8, 8), [0, 1, 2, 3], [sw.Shard(0)]), [sw.Shard(1)])\n"
    ">>> plan.route, plan.bytes_received, plan.bound\n"
    "('all-to-all', 192, 192)\n"
    ">>> plan.traffic(0).received\n"
    "48";

constexpr const char* kPlanRedistribution =
    "The plan that redistributes `src` into the layout of `dst`. Nothing is sent; Layouts need no process group.\n\n"
    "- `src`: a DTensor or a Layout. `dst`: one of these, or placements on the mesh of `src`.\n"
    "- `dtype`: default: that of `src`, or torch's default dtype for a Layout.\n"
    "- `objective`: \"bytes\" for the fewest bytes received, or \"time\" for the least time by `links`.\n"
    "- `links`: (latency in us, GB/s in each direction) per mesh dim of `src`; default: 20 us and 10 GB/s.\n"
    "- `memory_cap`: the most bytes of message buffers that a rank may hold at once. Larger exchanges are split into "
    "rounds, each of at least one\n"
    "  index of a box's longest dim. 0 is no limit.\n\n"
    "Raises ValueError if the shapes differ or options do not fit.\n\n"
    ">>> x = sw.ones(8, 8, device_mesh=mesh, placements=[sw.Shard(0)])\n"
    ">>> plan = sw.plan_redistribution(x, [sw.Replicate()])\n"
    ">>> plan.route, plan.bytes_received\n"
    "('all-gather', 768)";

void bind_layout(py::module_& module) {
  py::class_<Layout>(module, "Layout", kLayout)
      .def(py::init([](const Numbers& shape, const py::object& mesh, const UserPlacements& placements) {
             return layout_of(shape, grid_of(mesh), placements);
           }),
           py::arg("shape"), py::arg("mesh"), py::arg("placements"))
      .def_property_readonly("shape", &Layout::sizes)
      .def_property_readonly("mesh_shape", [](const Layout& self) { return c10::IntArrayRef(self.grid().shape); })
      .def_property_readonly(
          "ranks", [](const Layout& self) { return self.grid().ranks; }, "The ranks of the mesh, in row-major order.")
      .def_property_readonly("placements", [](const Layout& self) { return self.placements().vec(); })
      .def("boxes", torch::wrap_pybind_function(&Layout::boxes), py::arg("rank"),
           "(offsets, sizes) of the pieces of global `rank`; none outside the mesh.")
      .def(
          "local_sizes", [](const Layout& self, int64_t rank) { return py::tuple(py::cast(self.local_sizes(rank))); },
          py::arg("rank"),
          "The sizes of the local tensor of global `rank`. Raises ValueError if its pieces form no local tensor.")
      .def(py::self == py::self)
      .def("__hash__", &Layout::hash)
      .def("__str__", [](const Layout& self) { return to_string(self); })
      .def("__repr__", [](const Layout& self) { return fmt::format("Layout({})", to_string(self)); });
}

void bind_traffic(py::module_& module) {
  py::class_<RankTraffic>(module, "RankTraffic",
                          "One rank's share of a plan. Bytes that stay on the rank do not count; an all-reduce counts "
                          "as that of a ring, 2 (n-1)/n of the piece.")
      .def_readonly("sent", &RankTraffic::sent)
      .def_readonly("received", &RankTraffic::received)
      .def_readonly("bound", &RankTraffic::bound,
                    "The fewest bytes that the rank must receive: those that it needs and does not hold, or the bounds "
                    "of reductions.")
      .def_readonly("buffer_bytes", &RankTraffic::buffer_bytes, "The most bytes in message buffers at once.")
      .def_readonly("n_messages", &RankTraffic::n_messages, "Received.")
      .def_readonly("seconds", &RankTraffic::seconds, "By the links of the plan.")
      .def("__repr__", [](const RankTraffic& self) {
        return fmt::format(
            "RankTraffic(sent={}, received={}, bound={}, buffer_bytes={}, n_messages={}, seconds={:.3g})", self.sent,
            self.received, self.bound, self.buffer_bytes, self.n_messages, self.seconds);
      });
  py::class_<Summary>(module, "PlanSummary", "A plan's cost over all ranks, or over the sampled ones, scaled up.")
      .def_readonly("route", &Summary::route)
      .def_readonly("n_rounds", &Summary::n_rounds, "Steps that send something, times the rounds of each.")
      .def_readonly("received", &Summary::received, "Bytes, all ranks together.")
      .def_readonly("bound", &Summary::bound)
      .def_property_readonly("ratio", &Summary::ratio)
      .def_readonly("most_loaded_rank", &Summary::most_loaded_rank, "The first that receives most.")
      .def_readonly("most_received", &Summary::most_received)
      .def_readonly("buffer_bytes", &Summary::buffer_bytes, "The most of any rank.")
      .def_readonly("seconds", &Summary::seconds, "The slowest rank's.")
      .def("__repr__", [](const Summary& self) { return to_string(self); });
}

/// A property that needs the summary, which is computed without the GIL.
template <class Member>
auto of_summary(Member member) {
  return torch::wrap_pybind_function_no_gil(
      [member](const PyPlan& self) { return std::invoke(member, self.summary()); });
}

void bind_plan_class(py::module_& module) {
  using torch::wrap_pybind_function_no_gil;
  py::class_<PyPlan, std::shared_ptr<PyPlan>>(module, "Plan", kPlan)
      .def_property_readonly("source", [](const PyPlan& self) { return self.plan().source; })
      .def_property_readonly("destination", [](const PyPlan& self) { return self.plan().destination; })
      .def_property_readonly("route", of_summary(&Summary::route), "The names of the steps that send something.")
      .def_property_readonly(
          "steps",
          [](const PyPlan& self) {
            return c10::fmap(self.plan().steps, [&](const Step& step) { return name_of(step); });
          },
          "The names of all steps, in order.")
      .def_property_readonly("n_rounds", of_summary(&Summary::n_rounds))
      .def_property_readonly("bytes_received", of_summary(&Summary::received), "All ranks together.")
      .def_property_readonly("bound", of_summary(&Summary::bound), "Bytes that must be received, all ranks together.")
      .def_property_readonly("ratio", of_summary(&Summary::ratio), "bytes_received over bound.")
      .def_property_readonly("most_loaded_rank", of_summary(&Summary::most_loaded_rank))
      .def_property_readonly("most_received", of_summary(&Summary::most_received), "That rank's bytes.")
      .def_property_readonly(
          "buffer_bytes", of_summary(&Summary::buffer_bytes),
          "The most bytes of message buffers that any rank holds at once, in addition to source and destination.")
      .def_property_readonly("seconds", of_summary(&Summary::seconds), "Seconds of the slowest rank, by the links.")
      .def_property_readonly("planning_us", &PyPlan::planning_us, "Microseconds that planning took.")
      .def("traffic",
           wrap_pybind_function_no_gil([](const PyPlan& self, int64_t rank) { return traffic(self.plan(), rank); }),
           py::arg("rank"), "The share of global `rank`; all zero outside both meshes.")
      .def("simulate", wrap_pybind_function_no_gil([](const PyPlan& self) { return simulate(self.plan()); }),
           "(rank, RankTraffic) of every rank: those of the source's mesh in its order, then the other ranks of the "
           "destination's mesh.")
      .def("summary", wrap_pybind_function_no_gil([](const PyPlan& self, int64_t n_samples) {
             return n_samples > 0 ? summarize(self.plan(), n_samples) : self.summary();
           }),
           py::arg("n_samples") = 0, "Figures over all ranks, or over `n_samples` evenly spaced ranks, scaled up.")
      .def("__str__", wrap_pybind_function_no_gil([](const PyPlan& self) {
             return fmt::format("{} | planned in {:.1f} us", to_string(self.summary()), self.planning_us());
           }))
      .def("__repr__", [](const PyPlan& self) {
        return fmt::format("Plan({} -> {})", to_string(self.plan().source), to_string(self.plan().destination));
      });
}

}  // namespace

std::vector<Link> to_links(const MaybeLinks& links) {
  std::vector<Link> result;
  if (links)
    for (const auto& [latency_us, gb_per_s] : *links) result.push_back({latency_us, gb_per_s});
  return result;
}

PlanOptions plan_options(const char* op, const std::string& objective, const MaybeLinks& links, int64_t memory_cap) {
  SW_CHECK_VALUE(
      objective == "bytes" || objective == "time",
      "[{}] objective \"{}\" is not known: a plan has the fewest bytes or the least time. Use \"bytes\" or \"time\".",
      op, objective);
  PlanOptions options;
  options.objective = objective == "time" ? PlanOptions::Objective::kTime : PlanOptions::Objective::kBytes;
  options.links = to_links(links);
  options.memory_cap = memory_cap;
  return options;
}

void bind_plan(py::module_& module) {
  bind_layout(module);
  bind_traffic(module);
  bind_plan_class(module);
  define(module, "plan_redistribution", &plan_redistribution, kPlanRedistribution, py::arg("src"), py::arg("dst"),
         py::kw_only(), py::arg("dtype") = py::none(), py::arg("objective") = "bytes", py::arg("links") = py::none(),
         py::arg("memory_cap") = 0);

  py::class_<MoveCounters>(module, "RedistributionCounters",
                           "Counts of this thread's caches of plans and message buffers, which redistributions reuse.")
      .def_readonly("plan_hits", &MoveCounters::plan_hits)
      .def_readonly("plan_misses", &MoveCounters::plan_misses)
      .def_readonly("n_plans", &MoveCounters::n_plans, "Kept now.")
      .def_readonly("buffer_hits", &MoveCounters::buffer_hits)
      .def_readonly("buffer_misses", &MoveCounters::buffer_misses)
      .def_readonly("buffer_bytes", &MoveCounters::buffer_bytes, "Kept now.")
      .def("__repr__", [](const MoveCounters& self) {
        return fmt::format(
            "RedistributionCounters(plan_hits={}, plan_misses={}, n_plans={}, buffer_hits={}, buffer_misses={}, "
            "buffer_bytes={})",
            self.plan_hits, self.plan_misses, self.n_plans, self.buffer_hits, self.buffer_misses, self.buffer_bytes);
      });
  define_with_gil(module, "redistribution_counters", &move_counters,
                  "The counters of this thread's caches of plans and message buffers.\n\n"
                  ">>> x = sw.ones(8, 4, device_mesh=mesh, placements=[sw.Shard(0)])\n"
                  ">>> y = x.redistribute(placements=[sw.Shard(1)])\n"
                  ">>> before = sw.redistribution_counters().plan_hits\n"
                  ">>> y = x.redistribute(placements=[sw.Shard(1)])\n"
                  ">>> sw.redistribution_counters().plan_hits - before\n"
                  "1");
}

}  // namespace shardwise
