#include "python/bindings.h"
#include "python/casters.h"
#include "python/plan_of.h"

#include "pictures/picture.h"
#include "pictures/svg_writer.h"

#include <torch/csrc/Exceptions.h>

namespace shardwise {
namespace {

using Names = std::vector<std::string>;
using Place = std::variant<at::Tensor, Layout>;
/// Name, shape, name of the dtype, bytes of an element, and where it lives.
using ListedTensor = std::tuple<std::string, std::vector<int64_t>, std::string, int64_t, std::optional<Place>>;

const Layout& layout_of_place(const Place& place) {
  if (const auto* layout = std::get_if<Layout>(&place)) return *layout;
  return spec_of(std::get<at::Tensor>(place))->layout();
}

/// `element_bytes`: those of the tensor where it is one.
Picture picture_of_tensor(const Place& place, int64_t element_bytes, const Names& dim_names) {
  if (const auto* tensor = std::get_if<at::Tensor>(&place)) {
    const SpecPtr& spec = spec_of(*tensor);
    return picture_of(spec->layout(), spec->element_bytes(), spec->mesh()->names());
  }
  return picture_of(std::get<Layout>(place), element_bytes, dim_names);
}

Picture picture_of_mesh(std::vector<int64_t> shape, std::vector<int64_t> ranks, const Names& dim_names) {
  return picture_of(RankGrid{Dims(shape), std::move(ranks)}, dim_names);
}

Picture picture_of_tensors(const std::vector<ListedTensor>& tensors, int64_t rank) {
  std::vector<NamedTensor> named;
  for (const auto& [name, shape, dtype, element_bytes, place] : tensors) {
    std::optional<Layout> layout;
    if (place) layout = layout_of_place(*place);
    named.push_back({name, Dims(shape), dtype, element_bytes, std::move(layout)});
  }
  return picture_of(named, rank);
}

Picture picture_of_plan(py::handle plan) {
  const Plan& made = plan_of(plan);
  const py::gil_scoped_release no_gil;
  return picture_of(made);
}

Picture difference_of_plan(py::handle plan) {
  const Plan& made = plan_of(plan);
  const py::gil_scoped_release no_gil;
  return difference_of(made);
}

}  // namespace

void bind_picture(py::module_& module) {
  using torch::wrap_pybind_function;
  using torch::wrap_pybind_function_no_gil;
  py::class_<Picture>(module, "Figures", "What a picture shows, before it is drawn.")
      .def("draw",
           wrap_pybind_function_no_gil(
               [](const Picture& self, const std::string& format, bool color, int64_t max_width) {
                 return draw(self, {.color = color, .max_width = max_width, .format = format});
               }),
           py::arg("format") = PictureOptions().format, py::arg("color") = false,
           py::arg("max_width") = PictureOptions().max_width);
  module.def("page_style", &detail::page_style, "The rules of the drawings on a page.");
  module.def("picture_of_tensor", wrap_pybind_function_no_gil(&picture_of_tensor), py::arg("tensor"),
             py::arg("element_bytes") = PictureOptions().element_bytes, py::arg("dim_names") = Names());
  module.def("picture_of_mesh", wrap_pybind_function_no_gil(&picture_of_mesh), py::arg("shape"), py::arg("ranks"),
             py::arg("dim_names") = Names());
  module.def("picture_of_tensors", wrap_pybind_function_no_gil(&picture_of_tensors), py::arg("tensors"),
             py::arg("rank") = 0);
  module.def("picture_of_plan", wrap_pybind_function(&picture_of_plan), py::arg("plan"));
  module.def("difference_of_plan", wrap_pybind_function(&difference_of_plan), py::arg("plan"));
}

}  // namespace shardwise
