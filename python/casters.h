// python/casters.h: converts placements, meshes and boxes between Python and C++. Every file with bindings that take or return them includes this
// header.
//
//   placements   any sequence of ours or of torch.distributed.tensor's; returned as a tuple. UserPlacements accept
//                _StridedShard too, whose split factor depends on the mesh dims of the placements next to it
//   meshes       ours, or a torch.distributed.device_mesh.DeviceMesh
//   Dims         a list of integers, where a c10::IntArrayRef is a tuple of them
//   Box          (offsets, sizes)
#pragma once

#include "python/bindings.h"
#include "runtime/api/dtensor.h"
#include "runtime/tensor/reordered_mesh.h"

#include <optional>
#include <string>
#include <variant>

namespace shardwise {

using Numbers = std::vector<int64_t>;
using MaybeMesh = std::optional<MeshPtr>;
using MaybePlacements = std::optional<UserPlacements>;
using Number = std::variant<bool, int64_t, double, c10::complex<double>>;
using DimOrName = std::variant<int64_t, std::string>;  // a mesh dim

inline at::Scalar scalar_of(const Number& number) {
  return std::visit([](auto value) { return at::Scalar(value); }, number);
}

/// Throws: TypeError for anything that is no placement, ValueError for a _StridedShard, which has a meaning only together with a mesh.
Placement to_placement(py::handle object);
py::object from_placement(const Placement& placement);

/// A placement and its split factor: 1 for all but torch's _StridedShard. Throws: TypeError for anything that is no placement.
std::pair<Placement, int64_t> to_written(py::handle object);
/// The placement as a Python object: torch's _StridedShard if the split factor is not 1.
py::object from_written(const Placement& placement, int64_t split_factor);

/// Throws: TypeError if `object` is a placement, where a sequence of placements is expected. Does nothing for other objects.
void refuse_bare_placement(py::handle object);

/// A copy of the value of the bound type `Value` that `object` holds; nullopt for any other object. Does not ask the metaclass, as isinstance() does.
template <class Value>
std::optional<Value> held_by(py::handle object) {
  py::detail::make_caster<Value> caster;
  if (!caster.load(object, /*convert=*/false)) return std::nullopt;
  return py::detail::cast_op<Value>(caster);
}

/// Throws: TypeError for anything that is no mesh.
MeshPtr to_mesh(py::handle object);
/// The mesh as a shardwise.DeviceMesh: its existing Python object, else a new one.
py::object from_mesh(const MeshPtr& mesh);

/// The result of `converter`, a function of the Package, for a tensor whose operators are implemented in Python, such as torch's own DTensors; any
/// other tensor unchanged. Throws: the exceptions of `converter`.
at::Tensor converted_by(const at::Tensor& tensor, py::handle converter);

/// Throws: c10::ValueError for a plain tensor.
DTensorImpl& impl_of(const at::Tensor& tensor);

/// `mesh`, or the mesh of the innermost `with mesh:` of this thread. Throws: c10::Error if there is neither.
MeshPtr mesh_or_current(const MaybeMesh& mesh);
/// `mesh`, or the mesh of the innermost `with mesh:`, or a 1-D mesh of all ranks of the world.
MeshPtr mesh_or_world(const MaybeMesh& mesh, const std::string& device_type);
/// `dim` as a number in [0, ndim). nullopt stands for the only dim. Throws: c10::IndexError, c10::ValueError.
int64_t dim_of(const DeviceMesh& mesh, const std::optional<DimOrName>& dim);
/// The World of this thread (run_ranks), else of torch.distributed's default group; a new World if that group is new. Under torchrun,
/// torch.distributed is initialised first if it is not.
///
/// Throws: c10::ValueError saying how to start ranks. Collective over the processes if torch.distributed is initialised.
std::shared_ptr<World> python_world();
/// The ranks in a tensor or in nested sequences.
RankGrid to_grid(const py::object& mesh);

/// (latency in us, GB/s) per mesh dim.
using MaybeLinks = std::optional<std::vector<std::pair<double, double>>>;
std::vector<Link> to_links(const MaybeLinks& links);
/// Throws: c10::ValueError for an unknown objective, in the name of `op`.
PlanOptions plan_options(const char* op, const std::string& objective, const MaybeLinks& links, int64_t memory_cap);

/// `placements` of a tensor of `n_dims` dims on `mesh`; without placements Replicate() on each dim of `mesh`, without a mesh mesh_or_current().
PlacedOn placed_or_replicated(const MaybeMesh& mesh, MaybePlacements placements, int64_t n_dims);
/// The placements of a tensor of `n_dims` dims on its `mesh`. Throws: c10::ValueError for a _StridedShard whose splits are in another order than the
/// dims of `mesh`.
std::optional<Placements> placements_on(const MeshPtr& mesh, const MaybePlacements& written, int64_t n_dims);

}  // namespace shardwise

namespace pybind11::detail {

/// Calls `add(item)` for each item of a sequence. Returns false if `source` is no sequence.
template <class Add>
bool load_placements(handle source, const Add& add) {
  if (!PySequence_Check(source.ptr()) || PyUnicode_Check(source.ptr())) {
    shardwise::refuse_bare_placement(source);
    return false;
  }
  const auto items = reinterpret_steal<object>(PySequence_Fast(source.ptr(), ""));
  if (!items) throw error_already_set();
  const auto n_items = PySequence_Fast_GET_SIZE(items.ptr());
  for (Py_ssize_t i = 0; i < n_items; ++i) add(PySequence_Fast_GET_ITEM(items.ptr(), i));
  return true;
}

template <>
struct type_caster<shardwise::Placements> {
  PYBIND11_TYPE_CASTER(shardwise::Placements, const_name("Sequence[Placement]"));

  bool load(handle source, bool /*convert*/) {
    return load_placements(source, [&](handle item) { value.push_back(shardwise::to_placement(item)); });
  }
  static handle cast(const shardwise::Placements& placements, return_value_policy /*policy*/, handle /*parent*/) {
    tuple result(placements.size());
    for (size_t i = 0; i < placements.size(); ++i) result[i] = shardwise::from_placement(placements[i]);
    return result.release();
  }
};

template <>
struct type_caster<shardwise::UserPlacements> {
  PYBIND11_TYPE_CASTER(shardwise::UserPlacements, const_name("Sequence[Placement]"));

  bool load(handle source, bool /*convert*/) {
    return load_placements(source, [&](handle item) {
      auto [placement, split_factor] = shardwise::to_written(item);
      value.placements.push_back(std::move(placement));
      value.split_factors.push_back(split_factor);
    });
  }
  static handle cast(const shardwise::UserPlacements& written, return_value_policy /*policy*/, handle /*parent*/) {
    tuple result(written.placements.size());
    for (size_t i = 0; i < written.placements.size(); ++i)
      result[i] = shardwise::from_written(written.placements[i], written.split_factors[i]);
    return result.release();
  }
};

template <>
struct type_caster<shardwise::Dims> : list_caster<shardwise::Dims, int64_t> {};

template <>
struct type_caster<shardwise::Box> {
  using Pair = std::pair<shardwise::Dims, shardwise::Dims>;
  PYBIND11_TYPE_CASTER(shardwise::Box, make_caster<Pair>::name);

  bool load(handle source, bool convert) {
    make_caster<Pair> pair;
    if (!pair.load(source, convert)) return false;
    std::tie(value.offsets, value.sizes) = cast_op<Pair>(pair);
    return true;
  }
  static handle cast(const shardwise::Box& box, return_value_policy /*policy*/, handle /*parent*/) {
    return make_tuple(box.offsets, box.sizes).release();
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
