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

SpecPtr layout_reduced_once(const SpecPtr& grad, const SpecPtr& one, const SpecPtr& other, const Spec& weight) {
  const auto serves = [&](const SpecPtr& given, const SpecPtr& wanted) {
    for (size_t m = 0; m < grad->placements().size(); ++m) {
      const Placement &from = given->placements()[m], &to = wanted->placements()[m];
      const bool is_reduced = grad->placements()[m].is_partial() && (from.is_whole() || to.is_partial());
      if (!is_reduced && from != to) return false;
    }
    return true;
  };
  if (!serves(one, other) && !serves(other, one)) return grad;
  const SpecPtr& shared = serves(one, other) ? one : other;
  std::vector<Placement> placements = shared->placements().vec();
  for (const int64_t m : mesh_dims_with_terms(placements)) {
    std::vector<Placement> of_weight = weight.placements().vec();
    of_weight[m] = placements[m];
    const int64_t bytes_later = bytes_to_move(*weight.with_placements(of_weight), m, weight.placements()[m]);
    if (bytes_later > bytes_to_move(*shared, m, Placement::replicate())) placements[m] = Placement::replicate();
  }
  return shared->with_placements(placements);
}

}  // namespace shardwise
