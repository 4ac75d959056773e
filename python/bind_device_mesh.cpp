#include "python/bindings.h"
#include "python/casters.h"
#include "python/mesh_args.h"
#include "python/package.h"
#include "python/torch_world.h"
#include "runtime/comm/given_groups.h"
#include "runtime/comm/group_backend.h"
#include "runtime/tensor/mesh_attachment.h"
#include "runtime/tensor/mesh_lines.h"

#include <ATen/ops/tensor.h>
#include <fmt/format.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/distributed/c10d/GroupRegistry.hpp>

#include <algorithm>
#include <functional>
#include <map>
#include <numeric>
#include <unordered_map>

namespace shardwise {
namespace {

using Names = std::vector<std::string>;
using GroupNames = std::map<std::vector<int64_t>, std::string>;  // by ranks

/// The meshes of the `with mesh:` blocks that this thread is in.
thread_local std::vector<MeshPtr> active_meshes;

/// Called for the first mesh. Before it no tensor of ours exists, and torch is unchanged.
void install_replacements() {
  const py::gil_scoped_acquire gil;
  package().install();
}

c10::DeviceType device_type_of(const std::string& text) {
  const c10::Device device(text);
  TORCH_CHECK_VALUE(!device.has_index(),
                    fmt::format("[device_mesh] device_type \"{}\" has an index. A mesh spans devices: use \"{}\".",
                                text, c10::DeviceTypeName(device.type(), true)));
  return device.type();
}

MeshPtr make_mesh(const std::string& device_type, const at::Tensor& ranks, std::optional<Names> names) {
  install_replacements();
  RankGrid grid;
  grid.shape = Dims(ranks.sizes());
  const at::Tensor flat = ranks.to(at::kCPU, at::kLong).contiguous();
  grid.ranks.assign(flat.const_data_ptr<int64_t>(), flat.const_data_ptr<int64_t>() + flat.numel());
  auto mesh = DeviceMesh::create(python_world(), device_type_of(device_type), std::move(grid), names.value_or(Names()));
  // Makes the group of one rank here, where all ranks take part. If one rank made it later by itself, the names of its later groups would differ from
  // other ranks'.
  if (std::ranges::count(mesh->grid().shape, 1) > 0 && !World::is_thread() && !GivenGroups::current()) {
    const py::gil_scoped_acquire gil;
    package().lone_group(py::arg("is_collective") = true);
  }
  return mesh;
}

at::Tensor rank_tensor(const DeviceMesh& mesh) {
  return at::tensor(mesh.grid().ranks, at::kInt).view(mesh.grid().shape);
}

int64_t local_rank(const DeviceMesh& mesh, const std::optional<DimOrName>& mesh_dim) {
  const int64_t dim = dim_of(mesh, mesh_dim);
  TORCH_CHECK_VALUE(mesh.is_member(),
                    fmt::format("[device_mesh] rank {} is outside the mesh {}: it has no place in it. Ask "
                                "get_coordinate(), which is None there.",
                                mesh.rank(), to_string(mesh)));
  return (*mesh.coord())[dim];
}

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
  const std::string name = open_group(group, "device_mesh").getGroupName();
  if (!name.empty() && !is_registered(*group.process_group, name)) {
    group.process_group.reset();
    open_group(group, "device_mesh");
  }
  return name;
}

GroupPtr group_of_world(World& world) {
  std::vector<int64_t> ranks(world.size());
  std::iota(ranks.begin(), ranks.end(), 0);
  return world.group(ranks);
}

/// The group of torch.distributed; None on a non-member.
py::object torchs_group(const DeviceMesh& mesh, const std::optional<DimOrName>& mesh_dim) {
  const GroupPtr& group = mesh.group(dim_of(mesh, mesh_dim));
  if (!group) return py::none();
  const bool is_alone = group->size() == 1;
  const std::string name = open_name(is_alone ? *group_of_world(*mesh.world()) : *group);
  return is_alone && !name.empty() ? package().lone_group() : package().group_of(name);
}

/// The state of a Python DeviceMesh besides its grid and groups. It is kept here because Python objects may be freed while tensors on the mesh live.
struct Origin final : MeshAttachment {
  MeshPtr root;             // that it was sliced or flattened from, or null
  std::vector<Names> dims;  // per dim: names of the root's dims that it consists of
  std::optional<GroupNames> given;
  bool has_groups = true;
};

/// Null if it was not set.
std::shared_ptr<Origin> origin_of(const DeviceMesh& mesh) {
  return std::static_pointer_cast<Origin>(attachment_of(mesh));
}

/// True if `mesh` is `root` or an ancestor of it, so that `mesh` and `root` would keep each other alive.
bool comes_from(MeshPtr root, const DeviceMesh& mesh) {
  while (root && root.get() != &mesh) {
    const auto known = origin_of(*root);
    root = known ? known->root : nullptr;
  }
  return root != nullptr;
}

/// Keeps the known root if none is passed.
void set_origin(const DeviceMesh& mesh, const std::optional<MeshPtr>& root, std::vector<Names> dims,
                std::optional<GroupNames> given, bool has_groups) {
  const auto before = origin_of(mesh);
  auto known = before ? std::make_shared<Origin>(*before) : std::make_shared<Origin>();
  if (root && !comes_from(*root, mesh)) {
    known->root = *root;
    known->dims = std::move(dims);
  }
  known->given = std::move(given);
  known->has_groups = has_groups;
  attach_to(mesh, std::move(known));
}

/// (root, dims, given, has_groups), or None if it was not set.
py::object origin(const DeviceMesh& mesh) {
  const auto found = origin_of(mesh);
  if (!found) return py::none();
  const Origin& known = *found;
  py::tuple dims(known.dims.size());
  for (size_t i = 0; i < known.dims.size(); ++i) dims[i] = py::tuple(py::cast(known.dims[i]));
  py::object names = py::none();
  if (known.given) {
    py::dict by_ranks;
    for (const auto& [ranks, name] : *known.given) by_ranks[py::tuple(py::cast(ranks))] = name;
    names = std::move(by_ranks);
  }
  return py::make_tuple(known.root ? from_mesh(known.root) : py::object(py::none()), dims, names, known.has_groups);
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

/// A dict for Python's notes on the world of `mesh`, which lives as long as the world. Under the GIL.
py::dict world_notes(const DeviceMesh& mesh) {
  static auto* notes = new std::map<std::weak_ptr<World>, py::dict, std::owner_less<>>;  // outlives the interpreter
  std::erase_if(*notes, [](const auto& entry) { return entry.first.expired(); });
  return (*notes)[mesh.world()];
}

std::string text_of(const DeviceMesh& mesh) {
  return fmt::format("DeviceMesh({}, '{}')", to_string(mesh), c10::DeviceTypeName(mesh.device_type(), true));
}

MeshPtr submesh(const DeviceMesh& mesh, const std::variant<std::string, Names>& names) {
  if (const auto* name = std::get_if<std::string>(&names)) return mesh.submesh({*name});
  return mesh.submesh(std::get<Names>(names));
}

}  // namespace

MeshPtr to_mesh(py::handle object) {
  if (py::isinstance<DeviceMesh>(object)) return py::cast<std::shared_ptr<DeviceMesh>>(object);
  return py::cast<std::shared_ptr<DeviceMesh>>(package().mesh_from_torch(object));
}

py::object from_mesh(const MeshPtr& mesh) {
  if (!mesh) return py::none();
  const MeshPtr with_memory = mesh->with_memory();
  if (py::object object = registered_object(*with_memory)) return object;
  return package().mesh_of(MeshHandle{std::const_pointer_cast<DeviceMesh>(with_memory)});
}

int64_t dim_of(const DeviceMesh& mesh, const std::optional<DimOrName>& dim) {
  TORCH_INTERNAL_ASSERT(dim || mesh.ndim() == 1, "no dim of the mesh ", to_string(mesh), " is named");
  if (!dim) return 0;
  if (const auto* name = std::get_if<std::string>(&*dim)) {
    if (!std::ranges::count(mesh.names(), *name))
      throw py::key_error(
          fmt::format("[device_mesh] no mesh dim is called \"{}\": the mesh is {}.", *name, to_string(mesh)));
    return mesh.dim_of(*name);
  }
  const int64_t number = std::get<int64_t>(*dim);
  TORCH_CHECK_INDEX(number >= -mesh.ndim() && number < mesh.ndim(),
                    fmt::format("[device_mesh] mesh dim {} does not exist: the mesh is {}. Use a dim in [{}, {}).",
                                number, to_string(mesh), -mesh.ndim(), mesh.ndim()));
  return number < 0 ? number + mesh.ndim() : number;
}

/// The mesh of the innermost `with` block, ours or torch's own; null outside of such blocks.
static MeshPtr current_mesh() {
  {
    const py::gil_scoped_acquire gil;
    const py::object innermost = package().current_torch_mesh();  // torch's stack has our meshes, too
    if (!innermost.is_none() && !py::isinstance<DeviceMesh>(innermost)) return to_mesh(innermost);
  }
  return active_meshes.empty() ? nullptr : active_meshes.back();
}

MeshPtr mesh_or_world(const std::optional<MeshPtr>& mesh, const std::string& device_type) {
  if (mesh) return *mesh;
  if (MeshPtr current = current_mesh()) return current;
  install_replacements();
  python_world();  // initialises torch.distributed if needed
  return world_mesh(device_type_of(device_type));
}

MeshPtr mesh_or_current(const std::optional<MeshPtr>& mesh) {
  if (mesh) return *mesh;
  MeshPtr current = current_mesh();
  TORCH_CHECK(  // a RuntimeError, as torch's
      current, "[device_mesh] no mesh is given and none is active. Pass device_mesh=, or work under `with mesh:`.");
  return current;
}

UserPlacements placements_or_replicate(std::optional<UserPlacements> placements, const DeviceMesh& mesh) {
  if (placements) return *std::move(placements);
  return {Placements(mesh.ndim()), std::vector<int64_t>(mesh.ndim(), 1)};
}

std::optional<Placements> placements_on(const MeshPtr& mesh, const std::optional<UserPlacements>& written,
                                        int64_t n_dims) {
  if (!written) return std::nullopt;
  auto placements = maybe_placements_on(mesh, *written, n_dims);
  TORCH_CHECK_VALUE(
      placements,
      fmt::format("[placements] {} splits a dim in another order than the tensor, which lives on {}. Redistribute "
                  "the tensor first, or give placements in its order.",
                  to_string(*written), to_string(*mesh)));
  return placements;
}

void bind_device_mesh(py::module_& module) {
  py::class_<MeshHandle>(module, "MeshHandle", "A mesh from which a new shardwise.DeviceMesh is made.");
  py::class_<DeviceMesh, std::shared_ptr<DeviceMesh>> type(
      module, "DeviceMesh",
      "The C++ base of shardwise.DeviceMesh: the grid of ranks and the groups over which they communicate.");
  type.def(py::init([](const std::string& device_type, const py::object& mesh, std::optional<Names> mesh_dim_names) {
             const auto ranks =
                 py::module_::import("torch").attr("as_tensor")(mesh, py::arg("device") = "cpu").cast<at::Tensor>();
             py::gil_scoped_release no_gil;
             return std::const_pointer_cast<DeviceMesh>(make_mesh(device_type, ranks, std::move(mesh_dim_names)));
           }),
           py::arg("device_type"), py::arg("mesh"), py::kw_only(), py::arg("mesh_dim_names") = py::none())
      .def(py::init([](const MeshHandle& handle) { return handle.mesh; }), py::arg("handle"),
           "An object for this mesh.")
      .def("_register", &register_object,
           "Registers this complete object as the Python object of its mesh, while it lives.")
      .def_property_readonly("device_type",
                             [](const DeviceMesh& self) { return c10::DeviceTypeName(self.device_type(), true); })
      .def_property_readonly("mesh", &rank_tensor, "The ranks as an int32 tensor of the mesh's shape.")
      .def_property_readonly("mesh_dim_names",
                             [](const DeviceMesh& self) -> py::object {
                               if (self.names().empty()) return py::none();
                               return py::tuple(py::cast(self.names()));
                             })
      .def_property_readonly("ndim", &DeviceMesh::ndim)
      .def_property_readonly(
          "shape",
          [](const DeviceMesh& self) {
            return py::tuple(py::cast(std::vector<int64_t>(self.grid().shape.begin(), self.grid().shape.end())));
          })
      .def(
          "size",
          [](const DeviceMesh& self, const std::optional<DimOrName>& mesh_dim) {
            return mesh_dim ? self.size(dim_of(self, mesh_dim)) : self.size();
          },
          py::arg("mesh_dim") = py::none(), "The number of ranks along `mesh_dim`, or in total.")
      .def("get_rank", &DeviceMesh::rank, "This rank, global.")
      .def(
          "_world_size", [](const DeviceMesh& self) { return self.world()->size(); }, "The number of ranks in all.")
      .def("get_local_rank", &local_rank, py::arg("mesh_dim") = py::none(), "This rank's coordinate along `mesh_dim`.")
      .def(
          "get_coordinate",
          [](const DeviceMesh& self) -> std::optional<py::tuple> {
            if (!self.is_member()) return std::nullopt;
            return py::tuple(py::cast(std::vector<int64_t>(self.coord()->begin(), self.coord()->end())));
          },
          "This rank's coordinates in the mesh; None outside it.")
      .def("get_group", &torchs_group, py::arg("mesh_dim") = py::none(),
           "torch.distributed's process group along `mesh_dim`, None outside the mesh.")
      .def("_set_origin", &set_origin, py::arg("root"), py::arg("dims"), py::arg("given"), py::arg("has_groups"),
           "Sets the result of _origin() for the life of the mesh.")
      .def("_origin", &origin)
      .def("_world_notes", &world_notes,
           "A dict of notes on the meshes of this world, which lives as long as the world.")
      .def("__getitem__", torch::wrap_pybind_function_no_gil(&submesh), py::arg("mesh_dim_names"),
           "The mesh of the named dims through this rank. Collective, as making a mesh is.")
      .def("__enter__",
           [](const py::object& self) {
             active_meshes.push_back(to_mesh(self));
             return self;
           })
      .def("__exit__",
           [](const DeviceMesh& self, const py::args&) {
             TORCH_CHECK_VALUE(
                 !active_meshes.empty(),
                 fmt::format("[device_mesh] {} is left, but no mesh was entered on this thread. Use `with mesh:`.",
                             to_string(self)));
             active_meshes.pop_back();
           })
      .def(
          "__eq__", [](const DeviceMesh& self, const DeviceMesh& other) { return &self == &other; }, py::is_operator())
      .def("__hash__", [](const DeviceMesh& self) { return reinterpret_cast<Py_hash_t>(&self) >> 4; })
      .def("__repr__", &text_of)
      .def("__deepcopy__", [](const py::object& self, const py::object&) { return self; });
  type.attr("__module__") = "shardwise";
  module.def("mesh_or_current", torch::wrap_pybind_function(&mesh_or_current), py::arg("device_mesh") = py::none(),
             "The given mesh, or that of the innermost `with mesh:`."
             "\n\n"
             ">>> from shardwise.device_mesh import mesh_or_current\n"
             ">>> with mesh:\n"
             "...     mesh_or_current() == mesh\n"
             "True");
  module.def("mesh_or_world", torch::wrap_pybind_function_no_gil(&mesh_or_world), py::arg("device_mesh") = py::none(),
             py::arg("device_type") = "cpu",
             "The same, or a 1-D mesh of all ranks of the world if there is none.\n"
             "\n"
             ">>> from shardwise.device_mesh import mesh_or_world\n"
             ">>> mesh_or_world().mesh.tolist()\n"
             "[0, 1, 2, 3]");
}

}  // namespace shardwise
