#include "wrappers/mp_moves.h"

#include "text/check.h"
#include "wrappers/plain_parts.h"

#include <ATen/ops/empty.h>

namespace shardwise {
namespace {

/// One move of one tensor, with the defaults filled in and the arguments checked.
struct Move {
  const char* op;
  const at::Tensor& input;
  MeshPtr mesh;
  int64_t mesh_dim;

  Move(const char* op, const at::Tensor& input, const MeshAxis& axis)
      : op(op), input(input), mesh(axis.mesh), mesh_dim(axis.mesh_dim) {
    if (is_dtensor(input)) {
      const MeshPtr& own = spec_of(input)->mesh();
      SW_CHECK_VALUE(
          !mesh || mesh->with_memory() == own->with_memory(),
          "[{}] the DTensor lives on the mesh {}, not on {}. Leave mesh out, or redistribute(mesh, ...) it first.", op,
          to_string(*own), to_string(*mesh));
      mesh = own;
    }
    if (!mesh) mesh = world_mesh(input.device().type());
    SW_CHECK_INDEX(mesh_dim >= -mesh->ndim() && mesh_dim < mesh->ndim(),
                   "[{}] mesh dim {} does not exist: the mesh is {}. Use a dim in [{}, {}).", op, mesh_dim,
                   to_string(*mesh), -mesh->ndim(), mesh->ndim());
    if (mesh_dim < 0) mesh_dim += mesh->ndim();
    if (is_plain()) mesh = mesh->line(std::exchange(mesh_dim, 0));
  }

  bool is_plain() const { return !is_dtensor(input); }
  const Placement& placement() const { return spec_of(input)->placements()[mesh_dim]; }

  int64_t wrapped(int64_t dim) const {
    SW_CHECK_INDEX(dim >= -input.dim() && dim < input.dim(),
                   "[{}] dim {} does not exist: the tensor is of shape [{}]. Use a dim in [{}, {}).", op, dim,
                   fmt::join(input.sizes(), ", "), -input.dim(), input.dim());
    return dim < 0 ? dim + input.dim() : dim;
  }

  /// Throws if the move does not start from the DTensor's placement.
  void check_start(bool is_right, const char* wanted) const {
    SW_CHECK_VALUE(is_right,
                   "[{}] on mesh dim {} the tensor is {}, but must be {}. Use redistribute() for other moves.", op,
                   mesh_dim, to_string(placement()), wanted);
  }

  at::Tensor moved_to(const Placement& to) const { return placed_on(input, mesh_dim, to); }

  /// This rank's plain tensor as a DTensor placed `from`, with gradients placed `grad`.
  at::Tensor given_as(const Placement& from, const Placement& grad) const {
    return from_local(input, mesh, {from}, {.shape = Dims(input.sizes()), .grad_placements = Placements{grad}});
  }
};

}  // namespace

at::Tensor mp_copy(const at::Tensor& input, const MeshAxis& axis, Reduce reduce) {
  const Move move("mp_copy", input, axis);
  const Placement copy = Placement::replicate();
  if (move.is_plain()) return to_local(move.given_as(copy, copy), Placements{Placement::partial(reduce)});
  move.check_start(move.placement().is_whole(), "Replicate()");
  SW_CHECK_VALUE(reduce == Reduce::kSum,
                 "[mp_copy] reduce_op \"{}\" cannot be set for a DTensor: the placements of its gradient define the "
                 "reduction. Leave it out.",
                 to_string(reduce));
  // Converts to pieces and back, so that the backward redistributes the gradient to the layout of the pieces, which reduces sums.
  return from_pieces(to_pieces(input), spec_of(input));
}

at::Tensor mp_reduce(const at::Tensor& input, const MeshAxis& axis, Reduce reduce) {
  const Move move("mp_reduce", input, axis);
  const Placement copy = Placement::replicate();
  if (move.is_plain()) return to_local(placed_on(move.given_as(Placement::partial(reduce), copy), 0, copy));
  const std::string wanted = to_string(Placement::partial(reduce));
  move.check_start(move.placement() == Placement::partial(reduce), wanted.c_str());
  return move.moved_to(copy);
}

at::Tensor mp_scatter(const at::Tensor& input, int64_t dim, const MeshAxis& axis) {
  const Move move("mp_scatter", input, axis);
  const Placement part = Placement::shard(move.wrapped(dim)), copy = Placement::replicate();
  if (move.is_plain()) return local_part(placed_on(move.given_as(copy, copy), 0, part));
  move.check_start(!move.placement().divides(), "Replicate() or Partial()");
  return move.moved_to(part);
}

at::Tensor mp_gather(const at::Tensor& input, int64_t dim, const MeshAxis& axis) {
  const Move move("mp_gather", input, axis);
  dim = move.wrapped(dim);
  const Placement copy = Placement::replicate();
  if (!move.is_plain()) {
    const std::string wanted = to_string(Placement::shard(dim));
    move.check_start(move.placement().split_dim() == dim || move.placement().places_boxes(), wanted.c_str());
    return move.moved_to(copy);
  }
  if (!move.mesh->is_member()) return at::empty({0}, input.options());
  return to_local(placed_on(joined_parts(input, dim, move.mesh, move.op), 0, copy));
}

}  // namespace shardwise
