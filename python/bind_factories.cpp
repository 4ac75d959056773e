#include "python/bindings.h"
#include "python/casters.h"

#include "runtime/api/random.h"

#include <torch/csrc/Exceptions.h>

namespace shardwise {
namespace {

using Numbers = std::vector<int64_t>;
using MaybeMesh = std::optional<MeshPtr>;
using MaybePlacements = std::optional<UserPlacements>;
using Value = std::variant<bool, int64_t, double, c10::complex<double>>;
using Make = at::Tensor (*)(c10::IntArrayRef, const MeshPtr&, Placements, at::ScalarType);

PlacedOn placed_new(const Numbers& size, const MaybeMesh& mesh, MaybePlacements placements) {
  const MeshPtr given = mesh_or_current(mesh);
  return placed_on_mesh(given, placements_or_replicate(std::move(placements), *given),
                        static_cast<int64_t>(size.size()));
}

template <Make make>
at::Tensor py_make(const Numbers& size, at::ScalarType dtype, const MaybeMesh& mesh, MaybePlacements placements,
                   bool requires_grad) {
  PlacedOn placed = placed_new(size, mesh, std::move(placements));
  return make(size, placed.mesh, std::move(placed.placements), dtype).set_requires_grad(requires_grad);
}

at::Tensor py_full(const Numbers& size, const Value& value, at::ScalarType dtype, const MaybeMesh& mesh,
                   MaybePlacements placements, bool requires_grad) {
  PlacedOn placed = placed_new(size, mesh, std::move(placements));
  const auto scalar = std::visit([](auto number) { return at::Scalar(number); }, value);
  return full(size, scalar, placed.mesh, std::move(placed.placements), dtype).set_requires_grad(requires_grad);
}

}  // namespace

void bind_factories(py::module_& module) {
  using torch::wrap_pybind_function_no_gil;
  const auto def = [&](const char* name, auto&& function) {
    module.def(name, function, py::arg("size"), py::arg("dtype"), py::arg("device_mesh"), py::arg("placements"),
               py::arg("requires_grad"));
  };
  def("empty", wrap_pybind_function_no_gil(&py_make<&empty>));
  def("rand", wrap_pybind_function_no_gil(&py_make<&rand>));
  def("randn", wrap_pybind_function_no_gil(&py_make<&randn>));
  module.def("full", wrap_pybind_function_no_gil(&py_full), py::arg("size"), py::arg("fill_value"), py::arg("dtype"),
             py::arg("device_mesh"), py::arg("placements"), py::arg("requires_grad"));
}

}  // namespace shardwise
