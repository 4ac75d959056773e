#include "python/casters.h"
#include "wrappers/id_transform/exact_mapping.h"
#include "wrappers/id_transform/modulo_hash.h"

namespace shardwise {
namespace {

using State = std::vector<at::Tensor>;  // ids, last_used, counts, header

IdMappingState to_state(const State& state) {
  TORCH_INTERNAL_ASSERT(state.size() == 4, "a state of ", state.size(), " tensors");
  return {state[0], state[1], state[2], state[3]};
}

State new_state(const ExactMapping& mapping) {
  IdMappingState state = mapping.new_state();
  return {state.ids, state.last_used, state.counts, state.header};
}

RowFill to_fill(const std::string& init, double scale, int64_t seed) {
  if (init == "constant") return {Fill::kConstant, scale, seed};
  if (init == "uniform") return {Fill::kUniform, scale, seed};
  if (init == "normal") return {Fill::kNormal, scale, seed};
  TORCH_CHECK_VALUE(false, "[reset_rows] init \"", init, "\" is unknown. Use \"constant\", \"uniform\" or \"normal\".");
}

std::vector<std::pair<int64_t, int64_t>> reassigned(const ExactMapping& mapping) {
  std::vector<std::pair<int64_t, int64_t>> result;
  for (const auto& [row, id] : mapping.reassigned()) result.emplace_back(row, id);
  return result;
}

}  // namespace

void bind_id_transform(py::module_& module) {
  using NoGil = py::call_guard<py::gil_scoped_release>;
  py::class_<ExactMapping>(module, "ExactMapping",
                           "Maps raw ids to rows over the ranks of a mesh. See shardwise.id_transform.")
      .def(py::init([](int64_t n_rows, const MeshPtr& mesh, int64_t n_buckets, int64_t default_row) {
             return std::make_unique<ExactMapping>(ExactMappingOptions{n_rows, n_buckets, default_row}, mesh);
           }),
           py::arg("n_rows"), py::arg("device_mesh"), py::arg("n_buckets") = 0, py::arg("default_row") = 0)
      .def_property_readonly("n_buckets", [](const ExactMapping& self) { return self.options().n_buckets; })
      .def_property_readonly("placements", &ExactMapping::placements)
      .def("new_state", &new_state, NoGil(), "ids, last_used, counts and header of a mapping without ids.")
      .def(
          "transform",
          [](ExactMapping& self, const State& state, const at::Tensor& ids, bool assigns) {
            return self.transform(to_state(state), ids, assigns);
          },
          NoGil(), py::arg("state"), py::arg("ids"), py::arg("assigns"), "The row of each id.")
      .def_property_readonly("reassigned", &reassigned,
                             "(row, new id) of this rank's rows that the last step gave to another id.")
      .def_property_readonly("n_reassigned", &ExactMapping::n_reassigned)
      .def(
          "reset_rows",
          [](ExactMapping& self, const at::Tensor& tensor, const std::string& init, double scale, int64_t seed) {
            self.reset_rows(tensor, to_fill(init, scale, seed));
          },
          NoGil(), py::arg("tensor"), py::arg("init"), py::arg("scale"), py::arg("seed"), "Fills the rows given away.");
  define(module, "modulo_hash", &modulo_hash, py::arg("ids"), py::arg("n_rows"), py::arg("seed") = 0,
         "Rows by the ids' hashes.");
}

}  // namespace shardwise
