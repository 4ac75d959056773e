#include "python/casters.h"
#include "python/py_plan.h"

#include "pictures/picture.h"
#include "pictures/picture_formats.h"
#include "pictures/svg_writer.h"

namespace shardwise {
namespace {

using Names = std::vector<std::string>;
using Place = std::variant<at::Tensor, Layout>;
using Pieces = std::vector<Box>;  // of a LocalShardsWrapper
/// Name, shape, name of the dtype, bytes of an element, and its layout or pieces.
using ListedTensor =
    std::tuple<std::string, Dims, std::string, int64_t, std::variant<std::monostate, at::Tensor, Layout, Pieces>>;

/// `element_bytes`: ignored for a tensor, which knows its own.
Picture picture_of_tensor(const Place& place, int64_t element_bytes, const Names& dim_names) {
  if (const auto* tensor = std::get_if<at::Tensor>(&place)) {
    const SpecPtr& spec = spec_of(*tensor);
    return picture_of(spec->layout(), spec->element_bytes(), spec->mesh()->names());
  }
  return picture_of(std::get<Layout>(place), element_bytes, dim_names);
}

Picture picture_of_mesh(Dims shape, Numbers ranks, const Names& dim_names) {
  return picture_of(RankGrid{std::move(shape), std::move(ranks)}, dim_names);
}

Picture picture_of_tensors(const std::vector<ListedTensor>& tensors, int64_t rank) {
  std::vector<NamedTensor> named;
  for (const auto& [name, shape, dtype, element_bytes, place] : tensors) {
    NamedTensor& tensor = named.emplace_back(NamedTensor{name, shape, dtype, element_bytes, {}});
    if (const auto* distributed = std::get_if<at::Tensor>(&place)) {
      const SpecPtr& spec = spec_of(*distributed);
      const UserPlacements written = user_layout_of(*spec).placements;
      tensor.place = spec->layout();
      if (written.is_reordered()) tensor.placements = to_string(written);
    }
    if (const auto* layout = std::get_if<Layout>(&place)) tensor.place = *layout;
    if (const auto* pieces = std::get_if<Pieces>(&place)) tensor.place = LocalShards{rank, *pieces};
  }
  return picture_of(named, rank);
}

Picture picture_of_shards(int64_t rank, Pieces pieces, int64_t element_bytes) {
  return picture_of(LocalShards{rank, std::move(pieces)}, element_bytes);
}

/// picture_of() or difference_of() a plan. Names passed by the caller override those of the plan.
template <Picture (*draw_plan)(const Plan& plan, const MeshNames& names)>
Picture plan_picture(const PyPlan& plan, Names source_names, Names destination_names) {
  MeshNames names = plan.names();
  if (!source_names.empty()) names.source = std::move(source_names);
  if (!destination_names.empty()) names.destination = std::move(destination_names);
  return draw_plan(plan.plan(), names);
}

/// The name of each format that has files, and their suffix.
std::vector<std::pair<std::string_view, std::string_view>> picture_formats() {
  std::vector<std::pair<std::string_view, std::string_view>> formats;
  for (const detail::PictureFormat& format : detail::kPictureFormats)
    if (!format.suffix.empty()) formats.emplace_back(format.name, format.suffix);
  return formats;
}

}  // namespace

void bind_picture(py::module_& module) {
  using torch::wrap_pybind_function_no_gil;
  py::class_<Picture>(module, "Figures", "The content of a picture, before it is drawn.")
      .def("draw",
           wrap_pybind_function_no_gil(
               [](const Picture& self, const std::string& format, bool color, int64_t max_width) {
                 return draw(self, {.color = color, .max_width = max_width, .format = format});
               }),
           py::arg("format") = PictureOptions().format, py::arg("color") = false,
           py::arg("max_width") = PictureOptions().max_width);
  module.def("picture_formats", &picture_formats);
  module.def("page_style", &detail::page_style, "The CSS rules of the drawings on a page.");
  define(module, "picture_of_tensor", &picture_of_tensor, py::arg("tensor"),
         py::arg("element_bytes") = PictureOptions().element_bytes, py::arg("dim_names") = Names());
  define(module, "picture_of_mesh", &picture_of_mesh, py::arg("shape"), py::arg("ranks"),
         py::arg("dim_names") = Names());
  define(module, "picture_of_tensors", &picture_of_tensors, py::arg("tensors"), py::arg("rank") = 0);
  define(module, "picture_of_shards", &picture_of_shards, py::arg("rank"), py::arg("pieces"), py::arg("element_bytes"));
  define(module, "picture_of_plan", &plan_picture<&picture_of>, py::arg("plan"), py::arg("source_names") = Names(),
         py::arg("destination_names") = Names());
  define(module, "difference_of_plan", &plan_picture<&difference_of>, py::arg("plan"),
         py::arg("source_names") = Names(), py::arg("destination_names") = Names());
}

}  // namespace shardwise
