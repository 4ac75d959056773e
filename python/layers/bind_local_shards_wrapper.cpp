#include "python/casters.h"
#include "python/package.h"
#include "wrappers/local_shards_wrapper.h"

#include <torch/csrc/autograd/python_variable.h>

namespace shardwise {
namespace {

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

at::Tensor py_make_wrapper(std::vector<at::Tensor> shards, std::vector<Dims> offsets, at::ScalarType dtype,
                           const std::optional<at::Device>& device, int64_t n_dims) {
  for (at::Tensor& shard : shards) shard = converted_by(shard, package().as_piece);
  return make_local_shards(std::move(shards), std::move(offsets),
                           at::TensorOptions().dtype(dtype).device(device.value_or(at::kCPU)), n_dims);
}

at::Tensor py_from_known_shards(const at::Tensor& wrapper, const MeshPtr& mesh, const Dims& shape, at::ScalarType dtype,
                                const Dims& piece_strides, const std::vector<std::vector<Box>>& pieces) {
  const auto& ranks = mesh->grid().ranks;
  TORCH_INTERNAL_ASSERT(pieces.size() == ranks.size(), "pieces of ", pieces.size(), " ranks");
  std::vector<RankPieces> all;
  for (size_t i = 0; i < ranks.size(); ++i)
    all.push_back({ranks[i], dtype, mesh->device_type(), shape, {}, piece_strides, pieces[i]});
  return from_known_shards(wrapper, mesh, all);
}

}  // namespace

void bind_local_shards_wrapper(py::module_& module) {
  module.def("set_local_shards_class", &set_local_shards_class, py::arg("type"), "The class of every wrapper.");
  define_with_gil(module, "make_local_shards", &py_make_wrapper, py::arg("local_shards"), py::arg("offsets"),
                  py::arg("dtype") = at::kFloat, py::arg("device") = py::none(), py::arg("n_dims") = 2);
  define(module, "from_known_shards", &py_from_known_shards,
         "The DTensor of the members' wrappers where each knows what all hold: (offsets, sizes) of every rank's "
         "pieces, by place in the mesh. Nothing is sent.",
         py::arg("wrapper"), py::arg("device_mesh"), py::arg("shape"), py::arg("dtype"), py::arg("piece_strides"),
         py::arg("pieces"));
  define_with_gil(module, "local_shards", &local_shards, py::is_method(module));
  define_with_gil(module, "local_sizes", &local_sizes, py::arg("wrapper"));
  define_with_gil(module, "local_offsets", &local_offsets, py::arg("wrapper"));
}

}  // namespace shardwise
