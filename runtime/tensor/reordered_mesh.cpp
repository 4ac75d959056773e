#include "runtime/tensor/reordered_mesh.h"

#include "runtime/tensor/mesh_slices.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

namespace shardwise {
namespace {

/// The origin of `mesh`. A mesh that is not reordered is its own origin.
ReorderedFrom origin_of(const MeshPtr& mesh) {
  {
    const std::lock_guard lock(mesh->parts().mutex);
    if (mesh->parts().origin.mesh) return mesh->parts().origin;
  }
  std::vector<int64_t> order(mesh->ndim());
  std::iota(order.begin(), order.end(), 0);
  return {mesh->with_memory(), std::move(order)};
}

/// "1st: tp", "2nd: dp": names that no program uses, so that the mesh differs from a program's own mesh with these ranks.
std::vector<std::string> names_in(const DeviceMesh& mesh, c10::IntArrayRef order) {
  std::vector<std::string> names;
  for (size_t k = 0; k < order.size(); ++k) {
    const char* ending = k == 0 ? "st" : k == 1 ? "nd" : k == 2 ? "rd" : "th";
    const std::string name = mesh.names().empty() ? fmt::format("dim {}", order[k]) : mesh.names()[order[k]];
    names.push_back(fmt::format("{}{}: {}", k + 1, ending, name));
  }
  return names;
}

/// Pre: `order` differs from the order of `given`.
MeshPtr mesh_in(const MeshPtr& given, std::vector<int64_t> order) {
  const MeshPtr mesh = given->with_memory();
  MergedDims dims;
  for (const int64_t dim : order) dims.push_back({dim});
  const MeshPtr result = mesh->part(dims, names_in(*mesh, order));
  const std::lock_guard lock(result->parts().mutex);
  result->parts().origin = {mesh, std::move(order)};
  return result->on(given->device_type());
}

}  // namespace

PlacedOn placed_on_mesh(const MeshPtr& mesh, UserPlacements written, int64_t n_dims) {
  if (!written.is_reordered()) return {mesh, std::move(written.placements)};
  written = resolved(std::move(written), n_dims);
  std::vector<int64_t> order = order_of_splits(written, mesh->grid().shape);
  if (std::ranges::is_sorted(order)) return {mesh, std::move(written.placements)};
  std::vector<Placement> placements = reordered(c10::ArrayRef<Placement>(written.placements), order);
  return {mesh_in(mesh, std::move(order)), std::move(placements)};
}

std::optional<std::vector<Placement>> maybe_placements_on(const MeshPtr& mesh, const UserPlacements& written,
                                                          int64_t n_dims) {
  const ReorderedFrom origin = origin_of(mesh);
  if (written.placements.size() != origin.order.size()) return written.placements;  // Layout reports what is wrong
  const UserPlacements wanted = resolved(written, n_dims);
  auto placements = reordered(c10::ArrayRef<Placement>(wanted.placements), origin.order);
  if (written_in_order(placements, origin.order, origin.mesh->grid().shape) != wanted) return std::nullopt;
  return placements;
}

UserLayout user_layout_of(const Spec& spec) {
  const ReorderedFrom origin = origin_of(spec.mesh());
  if (auto written = written_in_order(spec.placements(), origin.order, origin.mesh->grid().shape))
    return {origin.mesh->on(spec.mesh()->device_type()), *std::move(written)};
  return {spec.mesh(), {spec.placements().vec(), std::vector<int64_t>(spec.placements().size(), 1)}};
}

SpecPtr on_sibling(const Spec& spec, const MeshPtr& mesh) {
  const ReorderedFrom from = origin_of(spec.mesh()), to = origin_of(mesh);
  if (from.mesh != to.mesh || spec.mesh()->is_meta() != mesh->is_meta()) return nullptr;
  std::vector<Placement> placements(spec.placements().size());
  for (size_t k = 0; k < placements.size(); ++k) {
    const auto place = std::ranges::find(to.order, from.order[k]) - to.order.begin();
    if (const Placement& each = spec.placements()[k]; each.is_chunk() || !each.divides()) placements[place] = each;
  }
  return Spec::intern(mesh, spec.sizes(), std::move(placements), spec.strides(), spec.dtype());
}

}  // namespace shardwise
