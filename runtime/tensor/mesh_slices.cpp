#include "runtime/tensor/mesh_slices.h"

#include "runtime/comm/gil_release.h"
#include "runtime/tensor/mesh_families.h"

#include <c10/util/accumulate.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <optional>

namespace shardwise {
namespace {

/// Opens the groups over which the parts of a mesh are made. Null if these are the World's, or if the caller has opened absent groups.
std::unique_ptr<GivenGroups> scope_of_parts(MeshGroups groups, const GivenGroups::ByRanks& given) {
  const auto* outer = GivenGroups::current();
  if (groups == MeshGroups::kWorlds || (outer && outer->are_absent())) return nullptr;
  if (groups == MeshGroups::kAbsent) return std::make_unique<GivenGroups>();
  auto all = outer ? outer->groups() : GivenGroups::ByRanks();
  all.insert(given.begin(), given.end());  // keeps the outer one of two groups
  return std::make_unique<GivenGroups>(std::move(all));
}

/// The slice with `rank`, or the first one.
const RankGrid& slice_with(const std::vector<RankGrid>& all, int64_t rank) {
  const auto own =
      std::ranges::find_if(all, [&](const RankGrid& each) { return std::ranges::count(each.ranks, rank) > 0; });
  return own == all.end() ? all.front() : *own;
}

DimNames joined(const std::vector<DimNames>& dims) {
  DimNames all;
  for (const DimNames& each : dims) all.insert(all.end(), each.begin(), each.end());
  return all;
}

bool has_name(const DeviceMesh& mesh, const std::string& name) { return std::ranges::count(mesh.names(), name) > 0; }

MeshPtr made_like(const DeviceMesh& mesh, RankGrid grid, DimNames names) {
  return DeviceMesh::create(mesh.world(), mesh.with_memory()->device_type(), std::move(grid), std::move(names));
}

/// Notes that `part` is a slice of `root` along these dims, unless it has a root already. A mesh that is its own ancestor would never be freed.
void adopt(const DeviceMesh& root, const DeviceMesh& part, std::vector<DimNames> dims) {
  const MeshPtr own = root.with_memory();
  for (MeshPtr each = own, next;; each = next) {
    if (each.get() == &part) return;
    next = root_of(*each);
    if (next == each) break;
  }
  MeshParts& parts = parts_of(part);
  const std::lock_guard lock(parts.mutex);
  if (parts.root) return;
  parts.root = own;
  parts.dims = std::move(dims);
}

std::string quoted(const DimNames& names) { return fmt::format("\"{}\"", fmt::join(names, "\", \"")); }

}  // namespace

std::vector<RankGrid> slices(const RankGrid& grid, const std::vector<std::vector<int64_t>>& dims) {
  Dims strides(grid.shape.size(), 1);
  for (auto i = static_cast<int64_t>(grid.shape.size()) - 2; i >= 0; --i)
    strides[i] = strides[i + 1] * grid.shape[i + 1];

  auto offsets_of = [&](c10::ArrayRef<int64_t> dims) {
    std::vector<int64_t> offsets{0};
    for (int64_t dim : dims) {
      std::vector<int64_t> next;
      for (int64_t offset : offsets)
        for (int64_t i = 0; i < grid.shape[dim]; ++i) next.push_back(offset + i * strides[dim]);
      offsets = std::move(next);
    }
    return offsets;
  };

  std::vector<int64_t> kept, fixed;
  RankGrid slice;
  for (const auto& merged : dims) {
    slice.shape.push_back(1);
    for (int64_t dim : merged) {
      kept.push_back(dim);
      slice.shape.back() *= grid.shape[dim];
    }
  }
  for (int64_t dim = 0; dim < static_cast<int64_t>(grid.shape.size()); ++dim)
    if (!std::ranges::count(kept, dim)) fixed.push_back(dim);

  std::vector<RankGrid> result;
  for (int64_t base : offsets_of(fixed)) {
    slice.ranks.clear();
    for (int64_t offset : offsets_of(kept)) slice.ranks.push_back(grid.ranks[base + offset]);
    result.push_back(slice);
  }
  return result;
}

std::vector<std::vector<int64_t>> positions(const DimNames& names, const std::vector<DimNames>& dims) {
  DimNames unknown;
  std::vector<std::vector<int64_t>> result;
  for (const DimNames& merged : dims) {
    result.emplace_back();
    for (const std::string& name : merged) {
      const auto found = std::ranges::find(names, name);
      if (found == names.end()) unknown.push_back(name);
      result.back().push_back(found - names.begin());
    }
  }
  if (!unknown.empty())
    throw UnknownMeshDim({__func__, __FILE__, __LINE__},
                         fmt::format("[device_mesh] Invalid mesh_dim_names: no mesh dim is called {}. The mesh has {}.",
                                     quoted(unknown), quoted(names)));
  return result;
}

std::vector<GroupPtr> make_lines(World& world, const RankGrid& grid) {
  std::vector<GroupPtr> mine(grid.shape.size());
  for (int64_t dim = 0; dim < static_cast<int64_t>(grid.shape.size()); ++dim)
    for (const RankGrid& line : slices(grid, {{dim}}))
      if (auto group = world.group(line.ranks)) mine[dim] = group;
  return mine;
}

MeshParts& parts_of(const DeviceMesh& mesh) { return *std::get_deleter<EndMesh>(mesh.with_memory())->parts; }

/// Destructors of groups wait for threads, which may need the interpreter's lock, so it is released if groups were given. Otherwise it is kept: the
/// caller may hold another lock that the interpreter lock's next holder waits for.
void EndMesh::operator()(DeviceMesh* mesh) {
  std::optional<GilRelease> no_gil;
  if (!parts->given.empty() || !parts->flattened.empty()) no_gil.emplace();
  delete mesh;
  parts.reset();
}

MeshPtr root_of(const DeviceMesh& mesh) {
  MeshParts& parts = parts_of(mesh);
  MeshPtr root;
  {
    const std::lock_guard lock(parts.mutex);
    root = parts.root;
  }
  return root ? root->on(mesh.device_type()) : mesh.shared_from_this();
}

std::vector<DimNames> dims_of_root(const DeviceMesh& mesh) {
  MeshParts& parts = parts_of(mesh);
  const std::lock_guard lock(parts.mutex);
  if (parts.root) return parts.dims;
  std::vector<DimNames> dims;
  for (const std::string& name : mesh.names()) dims.push_back({name});
  return dims;
}

MeshPtr DeviceMesh::submesh(const DimNames& names) const {
  if (names == names_) return shared_from_this();
  TORCH_CHECK(!names_.empty(), fmt::format("[device_mesh] Cannot slice a DeviceMesh without mesh_dim_names! {} has "
                                           "none: give them to init_device_mesh.",
                                           to_string(*this)));  // a RuntimeError, as torch's
  const MeshPtr root = root_of(*this);
  if (names.size() == 1)
    if (MeshPtr flat = flattened(*root, names[0])) return flat;

  std::vector<DimNames> own, of_root;
  auto given = parts_of(*this).given;
  for (const std::string& name : names) {
    own.push_back({name});
    if (has_name(*this, name)) continue;
    MeshParts& known = parts_of(*root);
    const std::lock_guard lock(known.mutex);
    const auto flat = known.flattened.find(name);
    if (flat == known.flattened.end()) continue;
    own.back() = flat->second.dims;
    given.insert(flat->second.given.begin(), flat->second.given.end());
  }
  const auto numbers = positions(names_, own);
  const DimNames all_dims = joined(own);
  for (const std::string& dim : all_dims)
    TORCH_CHECK_VALUE(std::ranges::count(all_dims, dim) == 1,
                      fmt::format("[device_mesh] dim \"{}\" is named twice in a submesh of {}. Name each dim once.",
                                  dim, to_string(*this)));
  const auto dims = dims_of_root(*this);
  for (const auto& merged : numbers) {
    of_root.emplace_back();
    for (int64_t dim : merged) of_root.back().insert(of_root.back().end(), dims[dim].begin(), dims[dim].end());
  }

  const bool is_by_all = groups_of(*this) == MeshGroups::kWorlds && !GivenGroups::current();
  const auto scope = scope_of_parts(groups_of(*this), given);
  const std::vector<RankGrid> all = slices(*grid_, numbers);
  for (const RankGrid& slice : all) {
    make_lines(*world_, slice);
    world_->group(slice.ranks);
  }
  const MeshPtr part = create(world_, with_memory()->device_type(), slice_with(all, rank()), names);
  adopt(*root, *part, of_root);
  if (is_by_all) note_family(*root, names, of_root);
  return part->on(device_type_);
}

MeshPtr as_line(const DeviceMesh& mesh, const std::string& name) {
  const bool is_by_all = groups_of(mesh) == MeshGroups::kWorlds && !GivenGroups::current();
  const MeshPtr root = root_of(mesh);
  const std::vector<DimNames> dims{joined(dims_of_root(mesh))};
  const auto scope = scope_of_parts(parts_of(mesh).groups, parts_of(mesh).given);
  const MeshPtr line = made_like(mesh, {{mesh.size()}, mesh.grid().ranks}, {name});
  adopt(*root, *line, dims);
  if (is_by_all) note_family(*root, {name}, dims);
  return line->on(mesh.device_type());
}

MeshPtr flatten(const DeviceMesh& mesh, std::string name) {
  TORCH_CHECK(!mesh.names().empty(),
              fmt::format("[device_mesh] {} has no mesh_dim_names to flatten it by. Give them to "
                          "init_device_mesh.",
                          to_string(mesh)));
  if (name.empty()) name = fmt::format("{}", fmt::join(mesh.names(), "_"));
  if (mesh.names() == DimNames{name}) return mesh.shared_from_this();
  const MeshPtr root = root_of(mesh);
  TORCH_CHECK_VALUE(!has_name(*root, name), fmt::format("[device_mesh] \"{}\" already exists as a dim of {}. Specify "
                                                        "another valid mesh_dim_name.",
                                                        name, to_string(*root)));
  if (MeshPtr known = flattened(*root, name)) {
    TORCH_CHECK_VALUE(known->grid().ranks == mesh.grid().ranks,
                      fmt::format("[device_mesh] a flattened mesh \"{}\" of other ranks has been created before. "
                                  "Specify another valid mesh_dim_name.",
                                  name));
    return known;
  }
  const MeshPtr line = as_line(mesh, name);
  const MeshParts& parts = parts_of(*line);
  FlattenedMesh flat{joined(dims_of_root(mesh)), parts.groups, parts.given, line->with_memory()};
  const std::lock_guard lock(parts_of(*root).mutex);
  parts_of(*root).flattened[name] = std::move(flat);
  return line;
}

MeshPtr flattened(const DeviceMesh& root, const std::string& name) {
  MeshParts& parts = parts_of(root);
  FlattenedMesh known;
  {
    const std::lock_guard lock(parts.mutex);
    const auto found = parts.flattened.find(name);
    if (found == parts.flattened.end()) return nullptr;
    known = found->second;
  }
  if (const MeshPtr mesh = known.mesh.lock()) return mesh->on(root.device_type());
  const auto scope = scope_of_parts(known.groups, known.given);
  const auto all = slices(root.grid(), positions(root.names(), {known.dims}));
  const MeshPtr mesh = made_like(root, slice_with(all, root.rank()), {name});
  adopt(root, *mesh, {known.dims});
  const std::lock_guard lock(parts.mutex);
  parts.flattened[name].mesh = mesh;
  return mesh->on(root.device_type());
}

std::vector<MeshPtr> flattened(const DeviceMesh& root) {
  MeshParts& parts = parts_of(root);
  DimNames names;
  {
    const std::lock_guard lock(parts.mutex);
    for (const auto& [name, mesh] : parts.flattened) names.push_back(name);
  }
  std::vector<MeshPtr> result;
  for (const std::string& name : names) result.push_back(flattened(root, name));
  return result;
}

MeshPtr unflatten(const DeviceMesh& mesh, int64_t dim, c10::IntArrayRef sizes, const DimNames& names) {
  TORCH_CHECK(sizes.size() == names.size(),
              fmt::format("[device_mesh] mesh_sizes [{}] and mesh_dim_names [{}] should have same length.",
                          fmt::join(sizes, ", "), fmt::join(names, ", ")));
  TORCH_CHECK(!mesh.names().empty() || mesh.ndim() == 1,
              fmt::format("[device_mesh] {} has no mesh_dim_names. Give them to init_device_mesh.", to_string(mesh)));
  TORCH_CHECK_VALUE(dim >= -mesh.ndim() && dim < mesh.ndim(),
                    fmt::format("[device_mesh] there is no dim {} in {}. Use one of its names, or a dim in [0, {}).",
                                dim, to_string(mesh), mesh.ndim()));
  dim = checked_dim(mesh, dim);
  const int64_t n_ranks = c10::multiply_integers(sizes);
  TORCH_CHECK_VALUE(
      n_ranks == mesh.size(dim),
      fmt::format(
          "[device_mesh] dim {} of {} has {} ranks, and the sizes [{}] have the product {}. Give sizes with the "
          "number of ranks as their product.",
          dim, to_string(mesh), mesh.size(dim), fmt::join(sizes, ", "), n_ranks));
  const auto split = [&](auto list, const auto& parts) {
    if (!list.empty()) list.erase(list.begin() + dim);
    list.insert(list.begin() + dim, parts.begin(), parts.end());
    return list;
  };
  const DimNames all_names = split(mesh.names(), names);
  RankGrid grid{split(mesh.grid().shape, sizes), mesh.grid().ranks};
  const MeshPtr root = root_of(mesh);
  if (root.get() == &mesh || groups_of(mesh) != MeshGroups::kWorlds || GivenGroups::current()) {
    const bool is_by_all = !GivenGroups::current();
    const auto scope = scope_of_parts(groups_of(mesh), parts_of(mesh).given);
    const MeshPtr result = made_like(mesh, std::move(grid), all_names);
    if (is_by_all) note_family(*result);
    return result->on(mesh.device_type());
  }
  // All ranks make the meshes of all slices: as slices of a mesh that has one more dim.
  grid.ranks.clear();
  for (const RankGrid& slice : slices(root->grid(), positions(root->names(), dims_of_root(mesh))))
    grid.ranks.insert(grid.ranks.end(), slice.ranks.begin(), slice.ranks.end());
  grid.shape.insert(grid.shape.begin(), grid.size() / mesh.size());
  DimNames row_names = all_names;
  row_names.insert(row_names.begin(), fmt::format("others of {}", fmt::join(all_names, ", ")));
  const MeshPtr rows = made_like(mesh, std::move(grid), std::move(row_names));
  note_family(*rows);
  return rows->submesh(all_names)->on(mesh.device_type());
}

MeshPtr concatenate(c10::ArrayRef<MeshPtr> meshes) {
  DimNames names, texts;
  for (const MeshPtr& mesh : meshes) {
    names.insert(names.end(), mesh->names().begin(), mesh->names().end());
    texts.push_back(to_string(*mesh));
  }
  const bool is_twice =
      std::ranges::any_of(names, [&](const auto& name) { return std::ranges::count(names, name) > 1; });
  const MeshPtr root = is_twice || meshes.empty() ? nullptr : common_root(meshes);
  TORCH_CHECK(root,
              fmt::format("[device_mesh] Cannot concatenate DeviceMeshes {}: they are not slices of one mesh along "
                          "different dims. Give slices of one mesh: mesh[\"dp\"] and mesh[\"tp\"].",
                          fmt::join(texts, ", ")));
  return root->submesh(names);
}

int64_t checked_dim(const DeviceMesh& mesh, int64_t dim) {
  TORCH_CHECK_INDEX(dim >= -mesh.ndim() && dim < mesh.ndim(),
                    fmt::format("[device_mesh] mesh dim {} does not exist: the mesh is {}. Use a dim in [{}, {}).", dim,
                                to_string(mesh), -mesh.ndim(), mesh.ndim()));
  return dim < 0 ? dim + mesh.ndim() : dim;
}

int64_t coord_along(const DeviceMesh& mesh, int64_t dim) {
  TORCH_CHECK_VALUE(mesh.is_member(),
                    fmt::format("[device_mesh] rank {} is outside the mesh {}: it has no place in it. Ask "
                                "get_coordinate(), which has no value there.",
                                mesh.rank(), to_string(mesh)));
  return (*mesh.coord())[dim];
}

}  // namespace shardwise
