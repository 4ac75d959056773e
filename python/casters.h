// python/casters.h: how placements and meshes cross between Python and C++. Every file that takes or returns one includes this.
//
//   placements   any sequence of ours or of torch.distributed.tensor's; a tuple on the way back
//   meshes       ours, or a torch.distributed.device_mesh.DeviceMesh
#pragma once

#include "runtime/api/dtensor.h"

#include <torch/csrc/utils/pybind.h>

namespace shardwise {

/// Throws: TypeError for anything that is no placement, ValueError for one of torch's that has no counterpart.
Placement to_placement(py::handle object);
py::object from_placement(const Placement& placement);

/// For a placement that stands where a sequence of them is wanted. Throws: TypeError; for anything else nothing.
void refuse_bare_placement(py::handle object);

/// Throws: TypeError for anything that is no mesh.
MeshPtr to_mesh(py::handle object);
/// The mesh as a shardwise.DeviceMesh: the object that there is for it, else a new one.
py::object from_mesh(const MeshPtr& mesh);

/// What `converter` of interop/torch_tensors.py makes of a tensor whose operators are written in Python, such as torch's own
/// DTensors; any other as it is. Throws: what that raises.
at::Tensor understood(const at::Tensor& tensor, const char* converter);

/// `mesh`, or the mesh of the innermost `with mesh:` of this thread. Throws: c10::ValueError where there is neither.
MeshPtr mesh_or_current(const std::optional<MeshPtr>& mesh);
/// (latency in us, GB/s) per mesh dim.
using MaybeLinks = std::optional<std::vector<std::pair<double, double>>>;
std::vector<Link> to_links(const MaybeLinks& links);
/// Throws: c10::ValueError for an unknown objective, in the name of `op`.
PlanOptions plan_options(const char* op, const std::string& objective, const MaybeLinks& links, int64_t memory_cap);

/// `placements`, or Replicate() on each dim of `mesh`.
Placements placements_or_replicate(std::optional<Placements> placements, const DeviceMesh& mesh);

inline py::tuple tuple_of(c10::IntArrayRef numbers) {
  py::tuple result(numbers.size());
  for (size_t i = 0; i < numbers.size(); ++i) result[i] = numbers[i];
  return result;
}

}  // namespace shardwise

namespace pybind11::detail {

template <>
struct type_caster<shardwise::Placements> {
  PYBIND11_TYPE_CASTER(shardwise::Placements, const_name("Sequence[Placement]"));

  bool load(handle source, bool /*convert*/) {
    if (!PySequence_Check(source.ptr()) || PyUnicode_Check(source.ptr())) {
      shardwise::refuse_bare_placement(source);
      return false;
    }
    const auto items = reinterpret_steal<object>(PySequence_Fast(source.ptr(), ""));
    if (!items) throw error_already_set();
    const auto n_items = PySequence_Fast_GET_SIZE(items.ptr());
    value.reserve(n_items);
    for (Py_ssize_t i = 0; i < n_items; ++i)
      value.push_back(shardwise::to_placement(PySequence_Fast_GET_ITEM(items.ptr(), i)));
    return true;
  }
  static handle cast(const shardwise::Placements& placements, return_value_policy /*policy*/, handle /*parent*/) {
    tuple result(placements.size());
    for (size_t i = 0; i < placements.size(); ++i) result[i] = shardwise::from_placement(placements[i]);
    return result.release();
  }
};

template <>
struct type_caster<shardwise::MeshPtr> {
  PYBIND11_TYPE_CASTER(shardwise::MeshPtr, const_name("DeviceMesh"));

  bool load(handle source, bool /*convert*/) {
    if (source.is_none()) return false;
    value = shardwise::to_mesh(source);
    return true;
  }
  static handle cast(const shardwise::MeshPtr& mesh, return_value_policy /*policy*/, handle /*parent*/) {
    return shardwise::from_mesh(mesh).release();
  }
};

}  // namespace pybind11::detail
