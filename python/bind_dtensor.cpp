#include "python/bindings.h"
#include "python/casters.h"
#include "runtime/local_kind.h"
#include "wrappers/local_shards_wrapper.h"

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
  return from_any_local(local, on, placements_or_replicate(std::move(placements), *on),
                        {run_check, dims_of(shape), dims_of(stride), std::move(grad_placements)});
}

at::Tensor py_redistribute(const at::Tensor& tensor, const MaybeMesh& mesh, MaybePlacements placements, bool /*async_op*/) {
  TORCH_CHECK_VALUE(placements, "[redistribute] got no placements. Give one per mesh dim: placements=[Shard(0)].");
  return redistribute(tensor, mesh ? *mesh : spec_of(tensor)->mesh(), std::move(*placements));
}

at::Tensor py_distribute_tensor(const at::Tensor& tensor, const MaybeMesh& mesh, MaybePlacements placements,
                                std::optional<int64_t> src_data_rank) {
  const MeshPtr& on = mesh_or_current(mesh);
  return distribute_tensor(tensor, on, placements_or_replicate(std::move(placements), *on), src_data_rank);
}

at::Tensor py_from_pieces(std::vector<at::Tensor> pieces, const MeshPtr& mesh, Placements placements, const Numbers& shape,
                          const Numbers& stride, at::ScalarType dtype, int64_t local_kind) {
  at::Tensor tensor = from_pieces(std::move(pieces), Spec::intern(mesh, shape, std::move(placements), stride, dtype));
  keep_local_kind(tensor, static_cast<LocalKind>(local_kind));
  return tensor;
}

int64_t local_kind_of(const at::Tensor& tensor) {
  spec_of(tensor);  // the error for other tensors
  return static_cast<int64_t>(maybe_dtensor(tensor)->local_kind());
}

/// (offsets, sizes) of this rank's pieces.
std::vector<std::pair<Numbers, Numbers>> boxes_of(const at::Tensor& tensor) {
  std::vector<std::pair<Numbers, Numbers>> result;
  for (const Box& box : spec_of(tensor)->boxes())
    result.emplace_back(Numbers(box.offsets.begin(), box.offsets.end()), Numbers(box.sizes.begin(), box.sizes.end()));
  return result;
}

/// (rank, offsets, sizes) of every rank's pieces.
std::vector<std::tuple<int64_t, Numbers, Numbers>> boxes_of_all(const at::Tensor& tensor) {
  const Layout& layout = spec_of(tensor)->layout();
  std::vector<std::tuple<int64_t, Numbers, Numbers>> result;
  for (const int64_t rank : layout.grid().ranks)
    for (const Box& box : layout.boxes(rank))
      result.emplace_back(rank, Numbers(box.offsets.begin(), box.offsets.end()), Numbers(box.sizes.begin(), box.sizes.end()));
  return result;
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
             py::arg("placements"), py::arg("shape"), py::arg("stride"), py::arg("dtype"), py::arg("local_kind"));
  module.def("local_kind_of", wrap_pybind_function(&local_kind_of), py::arg("tensor"));
  module.def("to_local", wrap_pybind_function(&to_any_local), py::is_method(module), py::kw_only(), py::arg("grad_placements") = none);
  module.def("to_pieces", wrap_pybind_function(&to_pieces), py::arg("tensor"));
  module.def("redistribute", wrap_pybind_function_no_gil(&py_redistribute), py::is_method(module), py::arg("device_mesh") = none,
             py::arg("placements") = none, py::kw_only(), py::arg("async_op") = false);
  module.def("full_tensor", wrap_pybind_function_no_gil(&full_tensor), py::is_method(module), py::kw_only(),
             py::arg("grad_placements") = none);
  module.def("distribute_tensor", wrap_pybind_function_no_gil(&py_distribute_tensor), py::arg("tensor"),
             py::arg("device_mesh") = none, py::arg("placements") = none, py::kw_only(), py::arg("src_data_rank") = 0);
  module.def("boxes_of", wrap_pybind_function(&boxes_of), py::arg("tensor"));
  module.def("boxes_of_all", wrap_pybind_function(&boxes_of_all), py::arg("tensor"));
  module.def("mesh_of", [](const at::Tensor& tensor) { return spec_of(tensor)->mesh(); }, py::arg("tensor"));
  module.def("placements_of", [](const at::Tensor& tensor) { return Placements(spec_of(tensor)->placements().vec()); },
             py::arg("tensor"));
}

}  // namespace shardwise
