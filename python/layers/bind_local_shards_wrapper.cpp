#include "python/bindings.h"
#include "python/casters.h"
#include "python/package.h"
#include "wrappers/local_shards_wrapper.h"

#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/python_variable.h>

namespace shardwise {
namespace {

using Numbers = std::vector<int64_t>;

PyTypeObject* wrapper_class = nullptr;

/// Gives a new wrapper its Python object, of our class.
void attach_wrapper(const at::Tensor& wrapper) {
  py::gil_scoped_acquire gil;
  const auto object = py::reinterpret_steal<py::object>(THPVariable_Wrap(wrapper, wrapper_class));
  if (!object) throw python_error();
}

void set_local_shards_class(const py::object& type) {
  wrapper_class = reinterpret_cast<PyTypeObject*>(py::object(type).release().ptr());
  set_local_shards_hook(&attach_wrapper);
}

at::Tensor py_make_wrapper(std::vector<at::Tensor> shards, const std::vector<Numbers>& offsets, at::ScalarType dtype,
                           const std::optional<at::Device>& device, int64_t n_dims) {
  for (at::Tensor& shard : shards) shard = converted_by(shard, package().as_piece);
  return make_local_shards(std::move(shards), {offsets.begin(), offsets.end()},
                           at::TensorOptions().dtype(dtype).device(device.value_or(at::kCPU)), n_dims);
}

std::vector<Numbers> to_numbers(const std::vector<Dims>& lists) {
  std::vector<Numbers> numbers;
  for (const Dims& list : lists) numbers.emplace_back(list.begin(), list.end());
  return numbers;
}

std::vector<Numbers> py_sizes(const at::Tensor& wrapper) { return to_numbers(local_sizes(wrapper)); }
std::vector<Numbers> py_offsets(const at::Tensor& wrapper) { return to_numbers(local_offsets(wrapper)); }

using Boxes = std::vector<std::pair<Numbers, Numbers>>;

at::Tensor py_from_known_shards(const at::Tensor& wrapper, const MeshPtr& mesh, const Numbers& shape,
                                at::ScalarType dtype, const Numbers& piece_strides, const std::vector<Boxes>& pieces) {
  const auto& ranks = mesh->grid().ranks;
  TORCH_INTERNAL_ASSERT(pieces.size() == ranks.size(), "pieces of ", pieces.size(), " ranks");
  std::vector<RankPieces> all;
  for (size_t i = 0; i < ranks.size(); ++i) {
    RankPieces each{ranks[i], dtype, mesh->device_type(), Dims(shape.begin(), shape.end()), {}, {}, {}};
    each.piece_strides.assign(piece_strides.begin(), piece_strides.end());
    for (const auto& [offsets, sizes] : pieces[i])
      each.boxes.push_back({Dims(offsets.begin(), offsets.end()), Dims(sizes.begin(), sizes.end())});
    all.push_back(std::move(each));
  }
  return from_known_shards(wrapper, mesh, all);
}

}  // namespace

void bind_local_shards_wrapper(py::module_& module) {
  using torch::wrap_pybind_function;
  using torch::wrap_pybind_function_no_gil;
  module.def("set_local_shards_class", &set_local_shards_class, py::arg("type"), "The class of every wrapper.");
  module.def("make_local_shards", wrap_pybind_function(&py_make_wrapper), py::arg("local_shards"), py::arg("offsets"),
             py::arg("dtype") = at::kFloat, py::arg("device") = py::none(), py::arg("n_dims") = 2);
  module.def("from_known_shards", wrap_pybind_function_no_gil(&py_from_known_shards),
             "The DTensor of the members' wrappers where each knows what all hold: (offsets, sizes) of every rank's "
             "pieces, by place in the mesh. Nothing is sent.",
             py::arg("wrapper"), py::arg("device_mesh"), py::arg("shape"), py::arg("dtype"), py::arg("piece_strides"),
             py::arg("pieces"));
  module.def("local_shards", wrap_pybind_function(&local_shards), py::is_method(module));
  module.def("local_sizes", wrap_pybind_function(&py_sizes), py::arg("wrapper"));
  module.def("local_offsets", wrap_pybind_function(&py_offsets), py::arg("wrapper"));
}

}  // namespace shardwise
