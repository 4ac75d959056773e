#include "python/bindings.h"
#include "runtime/api/total_norm.h"

#include <torch/csrc/Exceptions.h>

namespace shardwise {

void bind_total_norm(py::module_& module) {
  module.def("total_norm", torch::wrap_pybind_function(&total_norm), py::arg("tensors"), py::arg("norm_type"),
             "The norm of all tensors as one vector: distributed ones of any meshes, and plain ones that are equal on "
             "all ranks.\n"
             "One all-reduce, unless no mesh has the ranks of all others.");
}

}  // namespace shardwise
