#include "runtime/rules/move_bytes.h"

#include "placements/placement_list.h"

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
  if (from.is_whole()) return 0;
  if (from.is_partial()) return to.is_partial() ? 0 : to.is_shard() ? all_but_own : 2 * all_but_own;
  return to.is_shard() ? all_but_own / n : all_but_own;
}

int64_t bytes_to_gather(const Spec& spec, int64_t dim) {
  int64_t bytes = 0;
  for (const int64_t mesh_dim : mesh_dims_splitting(spec.placements(), dim))
    bytes += bytes_to_move(spec, mesh_dim, Placement::replicate());
  return bytes;
}

}  // namespace shardwise
