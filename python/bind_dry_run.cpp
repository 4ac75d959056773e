#include "python/bindings.h"
#include "runtime/dispatch/work_meter.h"
#include "runtime/redistribute/alike_ranks.h"
#include "runtime/tensor/meta_memory.h"

#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace shardwise {

void bind_dry_run(py::module_& module) {
  using Lifetime = std::tuple<int64_t, int64_t, int64_t, int64_t, std::string>;
  py::class_<MetaMemory>(module, "MetaMemory", "Records allocations on meta, from its construction to stop().")
      .def(py::init())
      .def("stop", &MetaMemory::stop)
      .def("n_allocations", &MetaMemory::n_allocations)
      .def("label", &MetaMemory::label, py::arg("tensor"), py::arg("label"),
           "Labels the memory of a tensor on meta, or of the pieces of a distributed one.")
      .def(
          "allocations",
          [](const MetaMemory& self) {
            std::vector<Lifetime> result;
            for (const MetaAllocation& each : self.allocations())
              result.emplace_back(each.bytes, each.begin, each.end, each.label, each.op);
            return result;
          },
          "(bytes, begin, end or -1, label, operator or \"\") of each. Times count allocations and releases.");
  using Figures = std::tuple<std::string, int64_t, int64_t, bool>;
  py::class_<WorkMeter>(module, "WorkMeter",
                        "Records this thread's operators on meta, from its construction to stop() on this thread.")
      .def(py::init())
      .def("stop", &WorkMeter::stop)
      .def("n_works", [](const WorkMeter& self) { return self.works().size(); })
      .def(
          "works",
          [](const WorkMeter& self) {
            std::vector<Figures> result;
            for (const Work& each : self.works())
              result.emplace_back(*each.op, each.flops, each.bytes, each.is_on_pieces);
            return result;
          },
          "(operator, floating-point operations, bytes read and written, within an operator on a DTensor) of each.");
  py::class_<MadeSpecs>(module, "MadeSpecs", "Keeps the layouts of all tensors, from its construction to stop().")
      .def(py::init())
      .def("stop", &MadeSpecs::stop)
      .def(
          "grids",
          [](const MadeSpecs& self) {
            std::set<std::pair<std::vector<int64_t>, std::vector<int64_t>>> grids;
            for (const SpecPtr& spec : self.specs()) {
              const RankGrid& grid = spec->mesh()->root()->grid();
              grids.insert({{grid.shape.begin(), grid.shape.end()}, grid.ranks});
            }
            return std::vector(grids.begin(), grids.end());
          },
          "(shape, ranks) of each mesh that was made by itself and has tensors.");
  define(module, "alike_ranks", &alike_ranks, py::arg("made"), py::arg("others"),
         "Returns the ranks in `others` that hold and send as much as this rank in everything that it did.");
  module.def(
      "coordinates_of", [](const MeshPtr& mesh, int64_t rank) { return coordinates_of(*mesh, rank); }, py::arg("mesh"),
      py::arg("rank"), "The coordinates of a rank in its own slice of the mesh that `mesh` is a slice of; or None.");
}

}  // namespace shardwise
