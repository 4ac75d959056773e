#include "python/bindings.h"
#include "python/casters.h"

#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/python_variable.h>

namespace shardwise {
namespace {

using Numbers = std::vector<int64_t>;
using MaybeMesh = std::optional<MeshPtr>;
using MaybePlacements = std::optional<Placements>;

PyTypeObject* tensor_class = nullptr;

/// Gives a new distributed tensor its Python object, of our class.
void attach(const at::Tensor& tensor) {
  py::gil_scoped_acquire gil;
  const auto object = py::reinterpret_steal<py::object>(THPVariable_Wrap(tensor, tensor_class));
  if (!object) throw python_error();
}

void set_tensor_class(const py::object& type) {
  tensor_class = reinterpret_cast<PyTypeObject*>(py::object(type).release().ptr());
  set_wrap_hook(&attach);
}

std::optional<Dims> dims_of(const std::optional<Numbers>& numbers) {
  return numbers ? std::optional(Dims(*numbers)) : std::nullopt;
}

at::Tensor py_from_local(const at::Tensor& local, const MaybeMesh& mesh, MaybePlacements placements, bool run_check,
                         const std::optional<Numbers>& shape, const std::optional<Numbers>& stride,
                         MaybePlacements grad_placements) {
  const MeshPtr& on = mesh_or_current(mesh);
  return from_local(local, on, placements_or_replicate(std::move(placements), *on),
                    {run_check, dims_of(shape), dims_of(stride), std::move(grad_placements)});
}

at::Tensor py_redistribute(const at::Tensor& tensor, const MaybeMesh& mesh, MaybePlacements placements, bool /*async_op*/) {
  const MeshPtr on = mesh ? *mesh : spec_of(tensor)->mesh();
  return redistribute(tensor, on, placements_or_replicate(std::move(placements), *on));
}

at::Tensor py_distribute_tensor(const at::Tensor& tensor, const MaybeMesh& mesh, MaybePlacements placements,
                                std::optional<int64_t> src_data_rank) {
  const MeshPtr& on = mesh_or_current(mesh);
  return distribute_tensor(tensor, on, placements_or_replicate(std::move(placements), *on), src_data_rank);
}

at::Tensor py_from_pieces(std::vector<at::Tensor> pieces, const MeshPtr& mesh, Placements placements, const Numbers& shape,
                          const Numbers& stride, at::ScalarType dtype) {
  return from_pieces(std::move(pieces), Spec::intern(mesh, shape, std::move(placements), stride, dtype));
}

}  // namespace

void bind_dtensor(py::module_& module) {
  using torch::wrap_pybind_function;
  using torch::wrap_pybind_function_no_gil;
  const auto none = py::none();
  module.def("set_tensor_class", &set_tensor_class, py::arg("type"), "The class that every distributed tensor is of.");
  module.def("from_local", wrap_pybind_function_no_gil(&py_from_local), py::arg("local_tensor"), py::arg("device_mesh") = none,
             py::arg("placements") = none, py::kw_only(), py::arg("run_check") = false, py::arg("shape") = none,
             py::arg("stride") = none, py::arg("grad_placements") = none);
  module.def("from_pieces", wrap_pybind_function_no_gil(&py_from_pieces), py::arg("pieces"), py::arg("device_mesh"),
             py::arg("placements"), py::arg("shape"), py::arg("stride"), py::arg("dtype"));
  module.def("to_local", wrap_pybind_function(&to_local), py::is_method(module), py::kw_only(), py::arg("grad_placements") = none);
  module.def("to_pieces", wrap_pybind_function(&to_pieces), py::arg("tensor"));
  module.def("redistribute", wrap_pybind_function_no_gil(&py_redistribute), py::is_method(module), py::arg("device_mesh") = none,
             py::arg("placements") = none, py::kw_only(), py::arg("async_op") = false);
  module.def("full_tensor", wrap_pybind_function_no_gil(&full_tensor), py::is_method(module), py::kw_only(),
             py::arg("grad_placements") = none);
  module.def("distribute_tensor", wrap_pybind_function_no_gil(&py_distribute_tensor), py::arg("tensor"),
             py::arg("device_mesh") = none, py::arg("placements") = none, py::kw_only(), py::arg("src_data_rank") = 0);
  module.def("mesh_of", [](const at::Tensor& tensor) { return spec_of(tensor)->mesh(); }, py::arg("tensor"));
  module.def("placements_of", [](const at::Tensor& tensor) { return Placements(spec_of(tensor)->placements().vec()); },
             py::arg("tensor"));
}

}  // namespace shardwise
