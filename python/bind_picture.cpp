#include "python/bindings.h"
#include "python/casters.h"

#include "pictures/picture.h"

#include <torch/csrc/Exceptions.h>

namespace shardwise {
namespace {

std::string picture_of_tensor(const at::Tensor& tensor, bool color, int64_t max_width, const std::string& format) {
  const SpecPtr& spec = spec_of(tensor);
  return picture(spec->layout(), {spec->element_bytes(), color, max_width, format});
}

}  // namespace

void bind_picture(py::module_& module) {
  module.def("picture", torch::wrap_pybind_function_no_gil(&picture_of_tensor), py::arg("tensor"),
             py::arg("color") = false, py::arg("max_width") = PictureOptions().max_width,
             py::arg("format") = PictureOptions().format);
}

}  // namespace shardwise
