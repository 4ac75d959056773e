#include "runtime/redistribute/mesh_agreement.h"

#include "runtime/comm/agreement.h"
#include "text/check.h"

namespace shardwise {
namespace {

/// True if all members mean the same two meshes and every member passes is_agreed.
bool all_agree(const Group& group, const DeviceMesh& from, const DeviceMesh& to, bool is_agreed) {
  Facts facts;
  facts.number(is_agreed);
  for (const DeviceMesh* mesh : {&from, &to}) facts.list(mesh->grid().shape).list(mesh->grid().ranks);
  return have_equal(group, "compare meshes", facts) && is_agreed;
}

/// True if all ranks of both meshes agree, as far as this rank can find out.
bool agree(const DeviceMesh& from, const DeviceMesh& to) {
  const auto within = [&](const DeviceMesh& mesh, bool is_agreed) {
    return mesh.is_member() ? all_agree(*mesh.group(), from, to, is_agreed) : is_agreed;
  };
  if (has_all_ranks_of(from, to)) return within(from, true);
  if (has_all_ranks_of(to, from)) return within(to, true);
  // Ranks in both meshes pass the result of `from` on to `to`, and the combined result back to `from`.
  return within(from, within(to, within(from, true)));
}

}  // namespace

void check_same_meshes(const DeviceMesh& from, const DeviceMesh& to) {
  if (have_same_ranks(from, to)) return;
  SW_CHECK_VALUE(
      agree(from, to),
      "[redistribute] a tensor cannot move from the mesh {} to the mesh {}: the ranks disagree about the two meshes, "
      "because a slice of a mesh has different ranks on each rank. Move it within one mesh, or wrap its value on the "
      "other mesh: DTensor.from_local(x.full_tensor(), mesh, [Replicate()] * mesh.ndim).",
      to_string(from), to_string(to));
}

}  // namespace shardwise
