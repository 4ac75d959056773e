#include "ops/support/planned_values.h"
#include "python/casters.h"
#include "python/package.h"
#include "runtime/comm/group_backend.h"
#include "runtime/redistribute/buffers.h"
#include "runtime/tensor/mesh_families.h"
#include "text/check.h"

#include <ATen/ops/tensor.h>
#include <torch/csrc/distributed/c10d/GroupRegistry.hpp>

#include <algorithm>
#include <functional>
#include <unordered_map>

namespace shardwise {
namespace {

/// Called for the first mesh. Before it no tensor of ours exists, and torch is unchanged.
void install_replacements() {
  const py::gil_scoped_acquire gil;
  package().install();
}

c10::DeviceType device_type_of(const std::string& text) {
  const c10::Device device(text);
  SW_CHECK_VALUE(!device.has_index(),
                 "[device_mesh] device_type \"{}\" has an index. A mesh spans devices: use \"{}\".", text,
                 c10::DeviceTypeName(device.type(), true));
  return device.type();
}

/// Makes the group of one rank for a mesh that all ranks make. If one rank made it later by itself, the names of its later groups would differ from
/// other ranks'.
MeshPtr with_lone_group(MeshPtr mesh) {
  if (std::ranges::count(mesh->grid().shape, 1) > 0 && mesh->groups() == MeshGroups::kWorlds && !World::is_thread() &&
      !GivenGroups::current()) {
    const py::gil_scoped_acquire gil;
    package().lone_group(py::arg("is_collective") = true);
  }
  return mesh;
}

/// `is_by_all`: all ranks of the world make the mesh.
MeshPtr make_mesh(const std::string& device_type, RankGrid grid, std::optional<DimNames> names, bool is_by_all) {
  install_replacements();
  const auto create = is_by_all ? &DeviceMesh::create : &DeviceMesh::create_by_members;
  const MeshPtr mesh = create(python_world(), device_type_of(device_type), std::move(grid), names.value_or(DimNames()));
  return is_by_all ? with_lone_group(mesh) : mesh;
}

/// The mesh with this rank, of the meshes of ranks every[0], every[1], ...
MeshPtr mesh_among(const std::string& device_type, const py::object& every, const DimNames& names) {
  RankGrid grid = to_grid(every);
  const py::gil_scoped_release no_gil;
  install_replacements();
  return with_lone_group(DeviceMesh::create_among(python_world(), device_type_of(device_type), std::move(grid), names));
}

at::Tensor to_tensor(const RankGrid& grid) { return at::tensor(grid.ranks, at::kInt).view(grid.shape); }

/// True if torch.distributed knows `group` by `name`. After destroy_process_group() another group may have the name.
bool is_registered(const c10d::ProcessGroup& group, const std::string& name) {
  try {
    return c10d::resolve_process_group(name).get() == &group;
  } catch (const c10::Error&) {
    return false;
  }
}

/// The name by which torch.distributed knows `group`; "" if it does not, as for threads.
/// Throws: c10::ValueError if the group was destroyed.
std::string open_name(Group group) {
  const c10d::ProcessGroup& open = open_group(group, "device_mesh");
  const std::string name = open.getGroupName();
  if (!name.empty() && !is_registered(open, name)) {
    group.process_group.reset();
    open_group(group, "device_mesh");
  }
  return name;
}

std::string text_of(const DeviceMesh& mesh) {
  return fmt::format("DeviceMesh({}, '{}')", to_string(mesh), c10::DeviceTypeName(mesh.device_type(), true));
}

/// The flattened mesh of this name; null if a dim is meant.
MeshPtr flattened_mesh(const DeviceMesh& mesh, const std::optional<DimOrName>& mesh_dim) {
  const auto* name = mesh_dim ? std::get_if<std::string>(&*mesh_dim) : nullptr;
  const bool is_flattened = name && !mesh.has_dim(*name) && std::ranges::count(mesh.root()->flattened(), *name) > 0;
  return is_flattened ? mesh.submesh({*name}) : nullptr;
}

/// The group of torch.distributed along a dim, or of a flattened mesh; None on a non-member.
py::object torchs_group(const DeviceMesh& mesh, const std::optional<DimOrName>& mesh_dim) {
  TORCH_CHECK(mesh.groups() != MeshGroups::kAbsent,  // a RuntimeError, as torch's
              fmt::format("[device_mesh] DeviceMesh process groups not initialized! {} was made with "
                          "_init_backend=False. Make it without that on all ranks.",
                          text_of(mesh)));
  if (const MeshPtr flat = flattened_mesh(mesh, mesh_dim)) return torchs_group(*flat, 0);
  const GroupPtr& group = mesh.process_group(dim_of(mesh, mesh_dim));
  if (!group) return py::none();
  if (group->size() > 1 || group->process_group) return package().group_of(open_name(*group));
  const std::string name = open_name(*mesh.world()->everyone());
  return name.empty() ? package().group_of(name) : package().lone_group();
}

template <class T>
py::tuple to_tuple(const std::vector<T>& values) {
  return py::tuple(py::cast(values));
}

py::tuple to_tuple(const std::vector<DimNames>& dims) {
  py::tuple result(dims.size());
  for (size_t i = 0; i < dims.size(); ++i) result[i] = to_tuple(dims[i]);
  return result;
}

/// The families that a pickled mesh names: (ranks of the root, names of the root, names, dims of the root per name).
py::list families(const DeviceMesh& mesh) {
  py::list result;
  for (const MeshFamily& each : related_families(mesh)) {
    result.append(py::make_tuple(py::cast(to_tensor(each.root)).attr("tolist")(), to_tuple(each.root_names),
                                 to_tuple(each.names), each.dims ? py::object(to_tuple(*each.dims)) : py::none()));
  }
  return result;
}

/// The ranks of all slices, one after another.
at::Tensor mesh_slices(const py::object& mesh, const DimNames& names, const std::vector<DimNames>& dims) {
  RankGrid all;
  for (const RankGrid& each : slices(to_grid(mesh), positions(names, dims))) {
    all.shape = each.shape;
    all.ranks.insert(all.ranks.end(), each.ranks.begin(), each.ranks.end());
  }
  all.shape.insert(all.shape.begin(), -1);
  return to_tensor(all);
}

/// A mesh on its way to a new object of Python.
struct MeshHandle {
  std::shared_ptr<DeviceMesh> mesh;  // not const, because a pybind11 holder cannot be; no binding changes a mesh
};

/// The Python objects of each mesh, as weak references; read and written under the GIL. pybind11's own table also returns objects that are under
/// construction or destruction, and releasing their members may run any code, here and in other threads.
std::unordered_map<const DeviceMesh*, std::vector<py::weakref>>& objects() {
  static auto* objects =
      new std::unordered_map<const DeviceMesh*, std::vector<py::weakref>>;  // outlives the interpreter
  return *objects;
}

bool is_alive(const py::weakref& object) { return !object().is_none(); }

void register_object(const py::object& object) {
  for (auto& [mesh, known] : objects()) std::erase_if(known, std::not_fn(is_alive));
  std::erase_if(objects(), [](const auto& entry) { return entry.second.empty(); });
  objects()[py::cast<const DeviceMesh*>(object)].emplace_back(object);
}

/// The living Python object of `mesh`, or null.
py::object registered_object(const DeviceMesh& mesh) {
  const auto found = objects().find(&mesh);
  if (found == objects().end()) return {};
  const auto living = std::ranges::find_if(found->second, is_alive);
  return living == found->second.end() ? py::object() : (*living)();
}

/// The mesh of the innermost `with` block, ours or torch's own; null outside of such blocks.
MeshPtr current_mesh() {
  const py::gil_scoped_acquire gil;
  const py::object innermost = package().current_torch_mesh();
  return innermost.is_none() ? nullptr : to_mesh(innermost);
}

}  // namespace

RankGrid to_grid(const py::object& mesh) {
  const auto ranks = py::module_::import("torch").attr("as_tensor")(mesh, py::arg("device") = "cpu").cast<at::Tensor>();
  const at::Tensor flat = ranks.to(at::kLong).contiguous();
  return {Dims(ranks.sizes()), {flat.const_data_ptr<int64_t>(), flat.const_data_ptr<int64_t>() + flat.numel()}};
}

MeshPtr to_mesh(py::handle object) {
  if (auto mesh = held_by<std::shared_ptr<DeviceMesh>>(object)) return *std::move(mesh);
  return py::cast<std::shared_ptr<DeviceMesh>>(package().mesh_from_torch(object));
}

py::object from_mesh(const MeshPtr& mesh) {
  if (!mesh) return py::none();
  const MeshPtr with_memory = mesh->with_memory();
  if (py::object object = registered_object(*with_memory)) return object;
  return package().mesh_of(MeshHandle{std::const_pointer_cast<DeviceMesh>(with_memory)});
}

int64_t dim_of(const DeviceMesh& mesh, const std::optional<DimOrName>& dim) {
  TORCH_CHECK(
      dim || mesh.ndim() == 1,  // a RuntimeError, as torch's
      fmt::format("[device_mesh] {} has {} dims. Say which: Optional kwarg `mesh_dim` needs to be specified when "
                  "device_mesh.ndim > 1.",
                  text_of(mesh), mesh.ndim()));
  if (!dim) return 0;
  const auto* name = std::get_if<std::string>(&*dim);
  if (!name) return mesh.checked_dim(std::get<int64_t>(*dim));
  try {
    return mesh.dim_of(*name);
  } catch (const UnknownMeshDim& error) {
    throw py::key_error(
        error.what_without_backtrace());  // as torch's, also where bindings translate c10's errors themselves
  }
}

MeshPtr mesh_or_world(const MaybeMesh& mesh, const std::string& device_type) {
  if (mesh) return *mesh;
  if (MeshPtr current = current_mesh()) return current;
  install_replacements();
  python_world();  // initialises torch.distributed if needed
  return world_mesh(device_type_of(device_type));
}

MeshPtr mesh_or_current(const MaybeMesh& mesh) {
  if (mesh) return *mesh;
  MeshPtr current = current_mesh();
  TORCH_CHECK(  // a RuntimeError, as torch's
      current, "[device_mesh] no mesh is given and none is active. Pass device_mesh=, or work under `with mesh:`.");
  return current;
}

PlacedOn placed_or_replicated(const MaybeMesh& mesh, MaybePlacements placements, int64_t n_dims) {
  const MeshPtr on = mesh_or_current(mesh);
  if (!placements) placements = {Placements(on->ndim()), Numbers(on->ndim(), 1)};
  return placed_on_mesh(on, *std::move(placements), n_dims);
}

std::optional<Placements> placements_on(const MeshPtr& mesh, const MaybePlacements& written, int64_t n_dims) {
  if (!written) return std::nullopt;
  auto placements = maybe_placements_on(mesh, *written, n_dims);
  SW_CHECK_VALUE(placements,
                 "[placements] {} splits a dim in another order than the tensor, which lives on {}. Redistribute the "
                 "tensor first, or give placements in its order.",
                 to_string(*written), to_string(*mesh));
  return placements;
}

void bind_device_mesh(py::module_& module) {
  const py::call_guard<py::gil_scoped_release> no_gil;
  py::class_<MeshHandle>(module, "MeshHandle", "A mesh from which a new shardwise.DeviceMesh is made.");
  py::class_<DeviceMesh, std::shared_ptr<DeviceMesh>> type(
      module, "DeviceMesh",
      "The C++ base of shardwise.DeviceMesh: the grid of ranks and the groups over which they communicate.");
  type.def(py::init([](const std::string& device_type, const py::object& mesh, std::optional<DimNames> mesh_dim_names,
                       bool is_by_all) {
             RankGrid grid = to_grid(mesh);
             py::gil_scoped_release no_gil;
             return std::const_pointer_cast<DeviceMesh>(
                 make_mesh(device_type, std::move(grid), std::move(mesh_dim_names), is_by_all));
           }),
           py::arg("device_type"), py::arg("mesh"), py::kw_only(), py::arg("mesh_dim_names") = py::none(),
           py::arg("_is_by_all") = true)
      .def(py::init([](const MeshHandle& handle) { return handle.mesh; }), py::arg("handle"),
           "An object for this mesh.")
      .def("_register", &register_object,
           "Registers this complete object as the Python object of its mesh, while it lives.")
      .def_property_readonly("device_type",
                             [](const DeviceMesh& self) { return c10::DeviceTypeName(self.device_type(), true); })
      .def_property_readonly(
          "mesh", [](const DeviceMesh& self) { return to_tensor(self.grid()); },
          "The ranks as an int32 tensor of the mesh's shape.")
      .def_property_readonly("mesh_dim_names",
                             [](const DeviceMesh& self) -> py::object {
                               if (self.names().empty()) return py::none();
                               return to_tuple(self.names());
                             })
      .def_property_readonly("ndim", &DeviceMesh::ndim)
      .def_property_readonly("shape", [](const DeviceMesh& self) { return c10::IntArrayRef(self.grid().shape); })
      .def(
          "size",
          [](const DeviceMesh& self, const std::optional<DimOrName>& mesh_dim) {
            return mesh_dim ? self.size(dim_of(self, mesh_dim)) : self.size();
          },
          py::arg("mesh_dim") = py::none(), "The number of ranks along `mesh_dim`, or in total.")
      .def("get_rank", &DeviceMesh::rank, "This rank, global.")
      .def(
          "_world_size", [](const DeviceMesh& self) { return self.world()->size(); }, "The number of ranks in all.")
      .def(
          "get_local_rank",
          [](const DeviceMesh& self, const std::optional<DimOrName>& mesh_dim) {
            if (const MeshPtr flat = flattened_mesh(self, mesh_dim)) return flat->coord_along(0);
            return self.coord_along(dim_of(self, mesh_dim));
          },
          py::arg("mesh_dim") = py::none(),
          "This rank's coordinate along `mesh_dim`. A 1-D mesh needs no `mesh_dim`; other meshes raise RuntimeError "
          "without it.")
      .def(
          "get_coordinate",
          [](const DeviceMesh& self) -> std::optional<c10::IntArrayRef> {
            if (self.coord()) return *self.coord();
            return std::nullopt;
          },
          "This rank's coordinates in the mesh; None outside it.")
      .def("get_group", &torchs_group, py::arg("mesh_dim") = py::none(),
           "torch.distributed's process group along `mesh_dim`, or of a flattened mesh; None on ranks outside the "
           "mesh. A 1-D mesh needs no `mesh_dim`. Raises RuntimeError if a mesh of several dims gets none, and for a "
           "mesh without groups.")
      .def_property_readonly("_has_groups", [](const DeviceMesh& self) { return self.groups() != MeshGroups::kAbsent; })
      .def_property_readonly("_root_mesh",
                             [](const DeviceMesh& self) {
                               const MeshPtr root = self.root();
                               return root.get() == &self ? py::object(py::none()) : from_mesh(root);
                             })
      .def("_dims_of_root", [](const DeviceMesh& self) { return to_tuple(self.dims_of_root()); })
      .def("_flattened", &DeviceMesh::flattened, "The names of the flattened meshes that this root knows.")
      .def("_families", &families)
      .def("__getitem__", &DeviceMesh::submesh, py::arg("mesh_dim_names"), no_gil)
      .def("_flatten", &DeviceMesh::flatten, py::arg("mesh_dim_name"), no_gil)
      .def("_as_line", &DeviceMesh::as_line, py::arg("mesh_dim_name"), no_gil,
           "As _flatten(), but the root does not know the mesh, and its name may be any.")
      .def(
          "_unflatten",
          [](const DeviceMesh& self, int64_t dim, const std::vector<int64_t>& sizes, const DimNames& names) {
            return with_lone_group(self.unflatten(dim, sizes, names));
          },
          py::arg("dim"), py::arg("mesh_sizes"), py::arg("mesh_dim_names"), no_gil)
      .def_static(
          "_concatenate", [](const std::vector<MeshPtr>& meshes) { return DeviceMesh::concatenate(meshes); },
          py::arg("device_mesh_list"), no_gil)
      .def(
          "__eq__", [](const DeviceMesh& self, const DeviceMesh& other) { return &self == &other; }, py::is_operator())
      .def("__hash__", [](const DeviceMesh& self) { return reinterpret_cast<Py_hash_t>(&self) >> 4; })
      .def("__repr__", &text_of)
      .def("__deepcopy__", [](const py::object& self, const py::object&) { return self; });
  module.def(
      "plan_for",
      [](const std::optional<std::string>& device_type, IdModel ids) {
        plan_ids(std::move(ids));
        const auto planned = device_type ? std::optional(device_type_of(*device_type)) : std::nullopt;
        DeviceMesh::plan_for(planned);
        BufferPool::of_thread().keep_on_meta(planned == c10::DeviceType::CPU);
      },
      py::arg("device_type"), py::arg("ids") = std::monostate(),
      "From now on every mesh is made on meta and planned for this kind of device; None ends that. `ids`: their model, "
      "by default spread evenly; the exponent of Zipf's law; or a histogram.");
  module.def("plans_ids", [] { return !planned_tables().empty(); }, "Whether ids were planned since plan_for().");
  module.def("mesh_slices", &mesh_slices, py::arg("mesh"), py::arg("mesh_dim_names"), py::arg("dims"),
             "The ranks of all slices of `mesh`, one after another. Dim i of a slice merges the dims in `dims[i]`.");
  module.def(
      "mesh_among", &mesh_among, py::arg("device_type"), py::arg("every"), py::arg("mesh_dim_names"),
      "The mesh that contains this rank, of the meshes of ranks every[0], every[1], ... Collective over the world: "
      "all ranks make all these meshes.");
  define_with_gil(module, "mesh_or_current", &mesh_or_current, py::arg("device_mesh") = py::none(),
                  "The given mesh, or that of the innermost `with mesh:`."
                  "\n\n"
                  ">>> from shardwise.device_mesh import mesh_or_current\n"
                  ">>> with mesh:\n"
                  "...     mesh_or_current() == mesh\n"
                  "True");
  define(module, "mesh_or_world", &mesh_or_world, py::arg("device_mesh") = py::none(), py::arg("device_type") = "cpu",
         "The same, or a 1-D mesh of all ranks of the world if there is none.\n"
         "\n"
         ">>> from shardwise.device_mesh import mesh_or_world\n"
         ">>> mesh_or_world().mesh.tolist()\n"
         "[0, 1, 2, 3]");
}

}  // namespace shardwise
