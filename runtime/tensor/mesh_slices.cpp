#include "runtime/tensor/mesh_slices.h"

#include "placements/split_order.h"
#include "runtime/comm/group_backend.h"
#include "runtime/tensor/mesh_families.h"
#include "text/check.h"

#include <c10/util/accumulate.h>
#include <fmt/ranges.h>

#include <numeric>
#include <utility>

namespace shardwise {
namespace {

/// True if all ranks of the World make the groups of parts of `mesh`, not its members alone.
bool is_of_world(const DeviceMesh& mesh) {
  return mesh.groups() == MeshGroups::kWorlds && mesh.root()->groups() == MeshGroups::kWorlds;
}

/// Opens the groups over which parts of `mesh` are made, or null if these are the World's or the caller has opened absent groups. `given`: groups
/// that the World does not know.
std::unique_ptr<GivenGroups> scope_of_parts(const DeviceMesh& mesh, const GivenGroups::ByRanks& given) {
  const auto* outer = GivenGroups::current();
  if ((is_of_world(mesh) && given.empty()) || (outer && outer->are_absent())) return nullptr;
  if (mesh.groups() == MeshGroups::kAbsent) return std::make_unique<GivenGroups>();
  auto all = outer ? outer->groups() : GivenGroups::ByRanks();
  all.insert(given.begin(), given.end());  // keeps the outer one of two groups
  return std::make_unique<GivenGroups>(std::move(all));
}

MeshPtr part_of(const DeviceMesh& mesh, const MergedDims& dims, DimNames names, const GivenGroups::ByRanks& given) {
  const auto scope = scope_of_parts(mesh, given);
  const std::vector<RankGrid> all = slices(mesh.grid(), dims);
  if (dims.size() != 1 || dims[0].size() != 1)  // otherwise the mesh has the groups
    for (const RankGrid& each : all) make_groups(*mesh.world(), each);
  const auto own =
      std::ranges::find_if(all, [&](const RankGrid& each) { return std::ranges::count(each.ranks, mesh.rank()) > 0; });
  return DeviceMesh::create_by_members(mesh.world(), mesh.with_memory()->device_type(),
                                       own == all.end() ? all.front() : *own, std::move(names))
      ->on(mesh.device_type());
}

/// Notes that `part` is a slice of `root` along these dims, unless it is a root or a slice already. A root over the World's groups replaces one that
/// was given groups.
void adopt(const DeviceMesh& root, const DeviceMesh& part, std::vector<DimNames> dims) {
  {
    const std::lock_guard lock(root.parts().mutex);
    root.parts().is_root = true;
  }
  MeshPtr replaced;  // may end here, after the lock
  MeshParts& parts = part.parts();
  const std::lock_guard lock(parts.mutex);
  const bool is_better = parts.root && parts.root->groups() == MeshGroups::kGiven &&
                         part.groups() == MeshGroups::kWorlds && root.groups() == MeshGroups::kWorlds;
  if (parts.is_root || (parts.root && !is_better)) return;
  replaced = std::exchange(parts.root, root.with_memory());
  parts.dims = std::move(dims);
}

/// part_of() whose root is that of `mesh`. Pre: the dims of `mesh` have names.
MeshPtr slice_of(const DeviceMesh& mesh, const MergedDims& dims, const DimNames& names,
                 const GivenGroups::ByRanks& given) {
  const bool is_by_all = is_of_world(mesh) && given.empty() && !GivenGroups::current();
  const MeshPtr root = mesh.root();
  const auto all_of_root = mesh.dims_of_root();
  std::vector<DimNames> of_root;
  for (const auto& merged : dims) {
    of_root.emplace_back();
    for (const int64_t dim : merged)
      of_root.back().insert(of_root.back().end(), all_of_root[dim].begin(), all_of_root[dim].end());
  }
  const MeshPtr slice = part_of(mesh, dims, names, given);
  adopt(*root, *slice, of_root);
  if (is_by_all) {
    connect_world(*slice->with_memory());
    note_family(*root, names, of_root);
  }
  return slice;
}

void check_has_names(const DeviceMesh& mesh) {
  SW_CHECK(!mesh.names().empty(),  // a RuntimeError, as torch's
           "[device_mesh] Cannot slice or flatten a DeviceMesh without mesh_dim_names! {} has none: give "
           "them to init_device_mesh.",
           to_string(mesh));
}

std::string quoted(const DimNames& names) { return fmt::format("\"{}\"", fmt::join(names, "\", \"")); }

}  // namespace

std::vector<RankGrid> slices(const RankGrid& grid, const MergedDims& dims) {
  RankGrid slice;
  std::vector<int64_t> kept, order;
  for (const auto& merged : dims) {
    slice.shape.push_back(1);
    for (const int64_t dim : merged) {
      kept.push_back(dim);
      slice.shape.back() *= grid.shape[dim];
    }
  }
  for (int64_t dim = 0; dim < static_cast<int64_t>(grid.shape.size()); ++dim)
    if (!std::ranges::count(kept, dim)) order.push_back(dim);
  order.insert(order.end(), kept.begin(), kept.end());

  std::vector<RankGrid> result;
  const RankGrid all = reordered(grid, order);
  for (auto begin = all.ranks.begin(); begin != all.ranks.end(); begin += c10::multiply_integers(slice.shape)) {
    slice.ranks.assign(begin, begin + c10::multiply_integers(slice.shape));
    result.push_back(slice);
  }
  return result;
}

std::vector<DimNames> each_alone(const DimNames& names) {
  return c10::fmap(names, [&](const std::string& name) { return DimNames{name}; });
}

MergedDims positions(const DimNames& names, const std::vector<DimNames>& dims) {
  DimNames unknown;
  MergedDims result;
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

GridGroups make_groups(World& world, const RankGrid& grid) {
  GridGroups mine{std::vector<GroupPtr>(grid.shape.size()), nullptr};
  const auto first = [&]() -> const Group* {
    const auto found =
        std::ranges::find_if(mine.lines, [](const GroupPtr& line) { return line && line->process_group; });
    return found == mine.lines.end() ? nullptr : found->get();
  };
  for (int64_t dim = 0; dim < static_cast<int64_t>(grid.shape.size()); ++dim)
    for (const RankGrid& line : slices(grid, {{dim}}))
      if (auto group = world.group(line.ranks, first())) mine.lines[dim] = group;
  for (const GroupPtr& line : mine.lines)  // a rank may ask for them alone (get_group() in Python)
    if (line && line->process_group) open_group(*line, "device_mesh");
  mine.everyone = world.group(grid.ranks, first());
  return mine;
}

MeshPtr DeviceMesh::root() const {
  const std::lock_guard lock(parts_->mutex);
  return parts_->root ? parts_->root->on(device_type_) : shared_from_this();
}

std::vector<DimNames> DeviceMesh::dims_of_root() const {
  const std::lock_guard lock(parts_->mutex);
  return parts_->root ? parts_->dims : each_alone(names_);
}

MeshPtr DeviceMesh::part(const MergedDims& dims, DimNames names) const {
  return part_of(*this, dims, std::move(names), parts_->given);
}

MeshPtr DeviceMesh::line(int64_t mesh_dim) const {
  if (ndim() == 1) return shared_from_this();
  if (GivenGroups::current()) return part({{mesh_dim}}, {});
  {
    const std::lock_guard lock(parts_->mutex);
    if (const MeshPtr& known = parts_->lines[mesh_dim]) return known->on(device_type_);
  }
  MeshPtr line = part({{mesh_dim}}, {});
  const std::lock_guard lock(parts_->mutex);
  parts_->lines[mesh_dim] = line->with_memory();
  return line;
}

MeshPtr DeviceMesh::submesh(const DimNames& names) const {
  if (names == names_) return shared_from_this();
  check_has_names(*this);
  const bool is_plain = !GivenGroups::current();
  if (is_plain) {
    const std::lock_guard lock(parts_->mutex);
    if (const auto known = parts_->slices.find(names); known != parts_->slices.end())
      if (const MeshPtr slice = known->second.lock()) return slice->on(device_type_);
  }
  const MeshPtr root = this->root();
  const DimNames flat_names = root->flattened();
  if (names.size() == 1 && root.get() != this && !has_dim(names[0]) && std::ranges::count(flat_names, names[0]) > 0)
    return root->submesh(names);

  std::vector<DimNames> dims;
  DimNames all_dims;
  auto given = parts_->given;
  for (const std::string& name : names) {
    dims.push_back({name});
    if (!has_dim(name) && std::ranges::count(flat_names, name) > 0) {
      const std::lock_guard lock(root->parts_->mutex);
      const FlattenedDim& flat = root->parts_->flattened.at(name);
      dims.back() = flat.dims;
      for (const auto& [ranks, group] : flat.given) given.insert_or_assign(ranks, group);
    }
    all_dims.insert(all_dims.end(), dims.back().begin(), dims.back().end());
  }
  const MergedDims numbers = positions(names_, dims);
  for (const std::string& dim : all_dims)
    SW_CHECK_VALUE(std::ranges::count(all_dims, dim) == 1,
                   "[device_mesh] dim \"{}\" is named twice in a submesh of {}. Name each dim once.", dim,
                   to_string(*this));
  MeshPtr slice = slice_of(*this, numbers, names, given);
  if (is_plain) {
    const std::lock_guard lock(parts_->mutex);
    parts_->slices[names] = slice->with_memory();
  }
  return slice;
}

MeshPtr DeviceMesh::as_line(const std::string& name) const {
  check_has_names(*this);
  std::vector<int64_t> all(ndim());
  std::iota(all.begin(), all.end(), 0);
  return slice_of(*this, {all}, {name}, parts_->given);
}

MeshPtr DeviceMesh::flatten(std::string name) const {
  check_has_names(*this);
  if (name.empty()) name = fmt::format("{}", fmt::join(names_, "_"));
  if (names_ == DimNames{name}) return shared_from_this();
  const MeshPtr root = this->root();
  SW_CHECK_VALUE(!root->has_dim(name),
                 "[device_mesh] \"{}\" already exists as a dim of {}. Specify another valid mesh_dim_name.", name,
                 to_string(*root));
  if (std::ranges::count(root->flattened(), name) > 0) {
    MeshPtr known = root->submesh({name});
    SW_CHECK_VALUE(known->grid().ranks == grid().ranks,
                   "[device_mesh] a flattened mesh \"{}\" of other ranks has been created before. Specify another "
                   "valid mesh_dim_name.",
                   name);
    return known;
  }
  MeshPtr line = as_line(name);
  FlattenedDim flat{{}, line->parts_->given};
  for (const DimNames& dims : dims_of_root()) flat.dims.insert(flat.dims.end(), dims.begin(), dims.end());
  const std::lock_guard lock(root->parts_->mutex);
  root->parts_->flattened[name] = std::move(flat);
  return line;
}

DimNames DeviceMesh::flattened() const {
  const std::lock_guard lock(parts_->mutex);
  DimNames names;
  for (const auto& [name, dim] : parts_->flattened) names.push_back(name);
  return names;
}

MeshPtr DeviceMesh::unflatten(int64_t mesh_dim, c10::IntArrayRef sizes, const DimNames& names) const {
  SW_CHECK(sizes.size() == names.size(),
           "[device_mesh] mesh_sizes [{}] and mesh_dim_names [{}] should have same length.", fmt::join(sizes, ", "),
           fmt::join(names, ", "));
  SW_CHECK(!names_.empty() || ndim() == 1, "[device_mesh] {} has no mesh_dim_names. Give them to init_device_mesh.",
           to_string(*this));
  SW_CHECK_VALUE(mesh_dim >= -ndim() && mesh_dim < ndim(),
                 "[device_mesh] there is no dim {} in {}. Use one of its names, or a dim in [0, {}).", mesh_dim,
                 to_string(*this), ndim());
  const int64_t dim = checked_dim(mesh_dim), n_ranks = c10::multiply_integers(sizes);
  SW_CHECK_VALUE(n_ranks == size(dim),
                 "[device_mesh] dim {} of {} has {} ranks, and the sizes [{}] have the product {}. Give sizes with the "
                 "number of ranks as their product.",
                 dim, to_string(*this), size(dim), fmt::join(sizes, ", "), n_ranks);
  const auto split = [&](auto list, const auto& parts) {
    if (!list.empty()) list.erase(list.begin() + dim);
    list.insert(list.begin() + dim, parts.begin(), parts.end());
    return list;
  };
  RankGrid grid{split(this->grid().shape, sizes), this->grid().ranks};
  const DimNames all_names = split(names_, names);
  const auto device_type = with_memory()->device_type();
  if (!is_of_world(*this)) {
    const auto scope = scope_of_parts(*this, parts_->given);
    return create_by_members(world_, device_type, std::move(grid), all_names)->on(device_type_);
  }
  if (const MeshPtr root = this->root(); root.get() != this) {
    grid.ranks.clear();
    for (const RankGrid& each : slices(root->grid(), positions(root->names(), dims_of_root())))
      grid.ranks.insert(grid.ranks.end(), each.ranks.begin(), each.ranks.end());
  }
  grid.shape.insert(grid.shape.begin(), grid.size() / size());
  return create_among(world_, device_type, std::move(grid), all_names)->on(device_type_);
}

MeshPtr DeviceMesh::create_among(std::shared_ptr<World> world, c10::DeviceType device_type, RankGrid every,
                                 const DimNames& names) {
  if (every.shape[0] == 1) {
    every.shape.erase(every.shape.begin());
    return create(std::move(world), device_type, std::move(every), names);
  }
  DimNames all_names = names;
  all_names.insert(all_names.begin(), fmt::format("others of {}", fmt::join(names, ", ")));
  return create(std::move(world), device_type, std::move(every), std::move(all_names))->submesh(names);
}

MeshPtr DeviceMesh::concatenate(c10::ArrayRef<MeshPtr> meshes) {
  DimNames names, of_root, texts;
  for (const MeshPtr& mesh : meshes) {
    names.insert(names.end(), mesh->names().begin(), mesh->names().end());
    texts.push_back(to_string(*mesh));
    if (mesh->root() != meshes[0]->root()) continue;
    for (const DimNames& dims : mesh->dims_of_root()) of_root.insert(of_root.end(), dims.begin(), dims.end());
  }
  const auto has_one_twice = [](const DimNames& list) {
    return std::ranges::any_of(list, [&](const auto& name) { return std::ranges::count(list, name) > 1; });
  };
  const bool is_twice = has_one_twice(names) || has_one_twice(of_root);
  const MeshPtr root = is_twice || meshes.empty() ? nullptr : common_root(meshes);
  SW_CHECK(root,
           "[device_mesh] Cannot concatenate DeviceMeshes {}: they are not slices of one mesh along different dims. "
           "Give slices of one mesh: mesh[\"dp\"] and mesh[\"tp\"].",
           fmt::join(texts, ", "));
  return root->submesh(names);
}

}  // namespace shardwise
