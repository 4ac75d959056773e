#include "python/bindings.h"
#include "python/casters.h"
#include "python/mesh_args.h"
#include "wrappers/module_layouts.h"
#include "wrappers/parallel_weight.h"

#include <torch/csrc/Exceptions.h>

namespace shardwise {
namespace {

at::Tensor py_weight(const std::vector<int64_t>& size, const Placement& placement, const MeshPtr& mesh,
                     const DimOrName& mesh_dim, int64_t stride, at::ScalarType dtype) {
  return parallel_weight(size, {mesh, dim_of(*mesh, mesh_dim), placement, stride}, dtype);
}

Placements py_layer_placements(bool is_embedding, bool is_rowwise) {
  const auto [weight, bias, input, output] = layer_placements(is_embedding ? LayerKind::kEmbedding : LayerKind::kLinear,
                                                              is_rowwise ? LayerSplit::kRowwise : LayerSplit::kColwise);
  return {weight, bias, input, output};
}

int64_t py_mesh_dim(const MeshPtr& mesh, const DimOrName& mesh_dim) { return dim_of(*mesh, mesh_dim); }

}  // namespace

void bind_parallel_weight(py::module_& module) {
  using torch::wrap_pybind_function_no_gil;
  module.def("parallel_weight", wrap_pybind_function_no_gil(&py_weight),
             "An uninitialised parameter of global `size`, placed along `mesh_dim` in `stride` blocks.",
             py::arg("size"), py::arg("placement"), py::arg("mesh"), py::arg("mesh_dim"), py::arg("stride"),
             py::arg("dtype"));
  module.def("layer_placements", torch::wrap_pybind_function(&py_layer_placements),
             "The placements of a layer's weight, other parameters, input and output.", py::arg("is_embedding"),
             py::arg("is_rowwise"));
  module.def("mesh_dim_number", wrap_pybind_function_no_gil(&py_mesh_dim), "A mesh dim given by number or name.",
             py::arg("mesh"), py::arg("mesh_dim"));
  module.def("initialize_", wrap_pybind_function_no_gil(&initialize_),
             "Draws `tensor` by the name of a distribution, the same on any number of ranks.", py::arg("tensor"),
             py::arg("init_type"));
  module.def("zero_row_", wrap_pybind_function_no_gil(&zero_row_), "Zeros in one row.", py::arg("tensor"),
             py::arg("row"));
  module.def("set_master_", wrap_pybind_function_no_gil(&set_master_), "Fills `parameter` from the whole `master`.",
             py::arg("parameter"), py::arg("master"));
}

}  // namespace shardwise
