#include "python/casters.h"
#include "text/check.h"
#include "wrappers/module_layouts.h"
#include "wrappers/parallel_layers.h"
#include "wrappers/parallel_weight.h"

#include <ATen/core/Reduction.h>

namespace shardwise {
namespace {

at::Tensor py_column(const at::Tensor& input, const at::Tensor& weight, const MaybeTensor& bias, bool gather_output,
                     int64_t mesh_dim) {
  return column_parallel_linear(input, weight, bias, {gather_output, mesh_dim});
}

at::Tensor py_row(const at::Tensor& input, const at::Tensor& weight, const MaybeTensor& bias, bool input_is_parallel,
                  int64_t mesh_dim) {
  return row_parallel_linear(input, weight, bias, {input_is_parallel, mesh_dim});
}

at::Tensor py_embedding(const at::Tensor& ids, const at::Tensor& weight, std::optional<int64_t> padding_idx,
                        std::optional<double> max_norm, double norm_type, bool scale_grad_by_freq, bool sparse,
                        bool gather_output, int64_t mesh_dim) {
  return parallel_embedding(ids, weight,
                            {padding_idx, max_norm, norm_type, scale_grad_by_freq, sparse, gather_output, mesh_dim});
}

int64_t reduction_of(const std::string& name) {
  if (name == "mean") return at::Reduction::Mean;
  if (name == "sum") return at::Reduction::Sum;
  SW_CHECK_VALUE(name == "none",
                 "[vocab_parallel_cross_entropy] \"{}\" is no reduction. Use \"mean\", \"sum\" or \"none\".", name);
  return at::Reduction::None;
}

at::Tensor py_cross_entropy(const at::Tensor& input, const at::Tensor& target, int64_t ignore_index,
                            const std::string& reduction, double label_smoothing, const MaybeMesh& mesh,
                            const DimOrName& mesh_dim) {
  const MeshPtr on =
      is_dtensor(input) ? nullptr : mesh_or_world(mesh, c10::DeviceTypeName(input.device().type(), true));
  const int64_t on_dim = on ? dim_of(*on, mesh_dim) : 0;
  return vocab_parallel_cross_entropy(input, target,
                                      {ignore_index, reduction_of(reduction), label_smoothing, on, on_dim});
}

at::Tensor py_weight(const Dims& size, const Placement& placement, const MeshPtr& mesh, const DimOrName& mesh_dim,
                     int64_t stride, at::ScalarType dtype) {
  return parallel_weight(size, {mesh, dim_of(*mesh, mesh_dim), placement, stride}, dtype);
}

Placements py_layer_placements(bool is_embedding, bool is_rowwise, const std::optional<Placement>& features) {
  const auto [weight, bias, input, output] =
      layer_placements(is_embedding ? LayerKind::kEmbedding : LayerKind::kLinear,
                       is_rowwise ? LayerSplit::kRowwise : LayerSplit::kColwise, features);
  return {weight, bias, input, output};
}

constexpr const char* kColumn =
    "F.linear with a weight [out, in] (DTensor) sharded along out on `mesh_dim`; see ColumnParallelLinear.";

constexpr const char* kRow =
    "F.linear with a weight [out, in] (DTensor) sharded along in, the bias counted once; see RowParallelLinear.";

constexpr const char* kEmbedding =
    "F.embedding in a table (DTensor) sharded along either dim; see ParallelEmbedding. `gather_output=False` leaves "
    "columns sharded.";

constexpr const char* kCrossEntropy =
    "F.cross_entropy with logits sharded along the classes (dim 1, or the only one); see VocabParallelCrossEntropy.";

}  // namespace

void bind_parallel_layers(py::module_& module) {
  const auto none = py::none();
  define(module, "column_parallel_linear", &py_column, kColumn, py::arg("input"), py::arg("weight"),
         py::arg("bias") = none, py::arg("gather_output") = true, py::arg("mesh_dim") = 0);
  define(module, "row_parallel_linear", &py_row, kRow, py::arg("input"), py::arg("weight"), py::arg("bias") = none,
         py::arg("input_is_parallel") = false, py::arg("mesh_dim") = 0);
  define(module, "parallel_embedding", &py_embedding, kEmbedding, py::arg("input"), py::arg("weight"),
         py::arg("padding_idx") = none, py::arg("max_norm") = none, py::arg("norm_type") = 2.0,
         py::arg("scale_grad_by_freq") = false, py::arg("sparse") = false, py::arg("gather_output") = true,
         py::arg("mesh_dim") = 0);
  define(module, "vocab_parallel_cross_entropy", &py_cross_entropy, kCrossEntropy, py::arg("input"), py::arg("target"),
         py::arg("ignore_index") = -100, py::arg("reduction") = "mean", py::arg("label_smoothing") = 0.0,
         py::arg("mesh") = none, py::arg("mesh_dim") = 0);
  define(module, "parallel_weight", &py_weight,
         "An uninitialised parameter of global `size`, placed along `mesh_dim` in `stride` blocks.", py::arg("size"),
         py::arg("placement"), py::arg("mesh"), py::arg("mesh_dim"), py::arg("stride"), py::arg("dtype"));
  define_with_gil(
      module, "layer_placements", &py_layer_placements,
      "The placements of a layer's weight, other parameters, input and output. `features`: the layout of the "
      "sharded features.",
      py::arg("is_embedding"), py::arg("is_rowwise"), py::arg("features") = none);
  define(
      module, "mesh_dim_number", [](const MeshPtr& mesh, const DimOrName& mesh_dim) { return dim_of(*mesh, mesh_dim); },
      "A mesh dim given by number or name.", py::arg("mesh"), py::arg("mesh_dim"));
  define(module, "initialize_", &initialize_,
         "Draws `tensor` by the name of a distribution, the same on any number of ranks.", py::arg("tensor"),
         py::arg("init_type"));
  define(module, "zero_row_", &zero_row_, "Zeros in one row.", py::arg("tensor"), py::arg("row"));
  define(module, "set_master_", &set_master_, "Fills `parameter` from the whole `master`.", py::arg("parameter"),
         py::arg("master"));
}

}  // namespace shardwise
