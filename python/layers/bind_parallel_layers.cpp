#include "python/bindings.h"
#include "python/casters.h"
#include "python/mesh_args.h"
#include "text/check.h"
#include "wrappers/parallel_layers.h"

#include <ATen/core/Reduction.h>
#include <torch/csrc/Exceptions.h>

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
                            const std::string& reduction, double label_smoothing, const std::optional<MeshPtr>& mesh,
                            const DimOrName& mesh_dim) {
  const MeshPtr on =
      is_dtensor(input) ? nullptr : mesh_or_world(mesh, c10::DeviceTypeName(input.device().type(), true));
  const int64_t on_dim = on ? dim_of(*on, mesh_dim) : 0;
  return vocab_parallel_cross_entropy(input, target,
                                      {ignore_index, reduction_of(reduction), label_smoothing, on, on_dim});
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
  using torch::wrap_pybind_function_no_gil;
  const auto none = py::none();
  module.def("column_parallel_linear", wrap_pybind_function_no_gil(&py_column), kColumn, py::arg("input"),
             py::arg("weight"), py::arg("bias") = none, py::arg("gather_output") = true, py::arg("mesh_dim") = 0);
  module.def("row_parallel_linear", wrap_pybind_function_no_gil(&py_row), kRow, py::arg("input"), py::arg("weight"),
             py::arg("bias") = none, py::arg("input_is_parallel") = false, py::arg("mesh_dim") = 0);
  module.def("parallel_embedding", wrap_pybind_function_no_gil(&py_embedding), kEmbedding, py::arg("input"),
             py::arg("weight"), py::arg("padding_idx") = none, py::arg("max_norm") = none, py::arg("norm_type") = 2.0,
             py::arg("scale_grad_by_freq") = false, py::arg("sparse") = false, py::arg("gather_output") = true,
             py::arg("mesh_dim") = 0);
  module.def("vocab_parallel_cross_entropy", wrap_pybind_function_no_gil(&py_cross_entropy), kCrossEntropy,
             py::arg("input"), py::arg("target"), py::arg("ignore_index") = -100, py::arg("reduction") = "mean",
             py::arg("label_smoothing") = 0.0, py::arg("mesh") = none, py::arg("mesh_dim") = 0);
}

}  // namespace shardwise
