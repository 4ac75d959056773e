#include "runtime/rules/move_bytes.h"

#include "placements/partial.h"

#include <algorithm>

namespace shardwise {

int64_t bytes_to_move(const Spec& spec, int64_t mesh_dim, const Placement& to) {
  const Placement& from = spec.placements()[mesh_dim];
  const DeviceMesh& mesh = *spec.mesh();
  int64_t bytes = spec.numel() * spec.element_bytes();
  for (int64_t other = 0; other < mesh.ndim(); ++other)
    if (other != mesh_dim && spec.placements()[other].is_shard()) bytes /= std::max<int64_t>(mesh.size(other), 1);
  const int64_t n = mesh.size(mesh_dim);
  const int64_t all_but_own = bytes - bytes / n;
  if (from.is_replicate()) return 0;
  if (from.is_partial()) return to.is_partial() ? 0 : to.is_shard() ? all_but_own : 2 * all_but_own;
  return to.is_shard() ? all_but_own / n : all_but_own;
}

int64_t bytes_to_gather(const Spec& spec, int64_t dim) {
  int64_t bytes = 0;
  for (int64_t mesh_dim = 0; mesh_dim < spec.mesh()->ndim(); ++mesh_dim)
    if (spec.placements()[mesh_dim].is_shard(dim)) bytes += bytes_to_move(spec, mesh_dim, Placement::replicate());
  return bytes;
}

int64_t n_shards_along(const Spec& spec, int64_t dim) {
  int64_t n = 1;
  for (int64_t mesh_dim = 0; mesh_dim < spec.mesh()->ndim(); ++mesh_dim)
    if (spec.placements()[mesh_dim].is_shard(dim)) n *= spec.mesh()->size(mesh_dim);
  return n;
}

std::vector<Placement> whole_along(const Spec& spec, c10::IntArrayRef dims) {
  return replicated_where(spec.placements(), [&](const Placement& placement) {
    return placement.in_pieces() || std::ranges::any_of(dims, [&](int64_t dim) { return placement.is_shard(dim); });
  });
}

}  // namespace shardwise
