#include "wrappers/fsdp/sharded_parameter.h"

#include "runtime/comm/gil_release.h"
#include "runtime/tensor/below_autograd.h"
#include "runtime/tensor/mesh_families.h"
#include "runtime/tensor/reordered_mesh.h"
#include "runtime/tensor/subclass.h"
#include "runtime/tensor/subclass_parts.h"
#include "text/check.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <c10/core/InferenceMode.h>
#include <fmt/ranges.h>

#include <algorithm>

namespace shardwise {
namespace {

/// Throws unless the parameter's mesh is a slice of the root, by names, on dims other than the data's.
void check_slice(const std::string& name, const Spec& spec, const DataMesh& data) {
  const DeviceMesh &mesh = *spec.mesh()->with_memory(), &root = *data.root;
  const bool is_beside = !mesh.names().empty() && data.mesh != data.root &&
                         std::ranges::all_of(mesh.names(), [&](const auto& each) { return root.has_dim(each); }) &&
                         root.submesh(mesh.names()).get() == &mesh;
  const bool has_data_dims =
      spec.mesh()->with_memory() == data.mesh ||
      (is_beside && std::ranges::any_of(mesh.names(), [&](const auto& each) { return data.mesh->has_dim(each); }));
  SW_CHECK_VALUE(!has_data_dims,
                 "[fully_shard] {} is already placed as {} on {}, the mesh over which fully_shard would shard it. "
                 "Leave it out, with ignored_params={{...}}, or place it on the other mesh dims only: "
                 "parallelize_module(model, mesh[\"tp\"], ...).",
                 name, to_string(spec.placements()), to_string(mesh));
  SW_CHECK_VALUE(is_beside,
                 "[fully_shard] {} is on the mesh {}, and fully_shard got the mesh {}: both must be slices of one "
                 "mesh. Use mesh[\"tp\"] and mesh[\"dp\"].",
                 name, to_string(mesh), to_string(*data.mesh));
}

/// The mesh of the data's dims and the parameter's dims, in the root's order.
MeshPtr joined_mesh(const Spec& spec, const DataMesh& data) {
  std::vector<std::string> names;
  for (const std::string& each : data.root->names())
    if (data.mesh->has_dim(each) || spec.mesh()->has_dim(each)) names.push_back(each);
  return data.root->submesh(names);
}

/// `along` with its dim in [0, dim), and 0 for a parameter of 0 dims.
Placement resolved(const std::string& name, const at::Tensor& parameter, const Placement& along) {
  SW_CHECK_VALUE(along.divides() && !along.places_boxes(),
                 "[fully_shard] {} is to be placed as {}, which is no Shard. Give Shard(dim).", name, to_string(along));
  const int64_t n_dims = std::max<int64_t>(parameter.dim(), 1);
  SW_CHECK_INDEX(along.fits_dims(n_dims),
                 "[fully_shard] {} is to be placed as {}: it has the shape [{}]. Use a dim in [{}, {}).", name,
                 to_string(along), fmt::join(parameter.sizes(), ", "), -n_dims, n_dims);
  return along.with_dim_from_zero(n_dims);
}

/// `spec` with each rank's piece split further by `along` among the sharding ranks.
SpecPtr spec_of_parts(const std::string& name, const Spec& spec, const DataMesh& data, const Placement& along) {
  const MeshPtr mesh = joined_mesh(spec, data);
  UserPlacements written{Placements(mesh->ndim()), std::vector<int64_t>(mesh->ndim(), 1)};
  for (int64_t dim = 0; dim < spec.mesh()->ndim(); ++dim)
    written.placements[mesh->dim_of(spec.mesh()->names()[dim])] = spec.placements()[dim];
  if (spec.dim() > 0) {
    const int64_t shard_dim = mesh->dim_of(data.mesh->names().back());
    for (int64_t dim = 0; dim < mesh->ndim(); ++dim)
      SW_CHECK_VALUE(written.placements[dim].split_dim() != along.dim() ||
                         (written.placements[dim].is_chunk() && along.is_chunk()),
                     "[fully_shard] {} is placed as {}: explicit sizes along dim {} cannot be combined with another "
                     "split of this dim. Use another dim, with shard_placement_fn, shard it evenly, or leave it out, "
                     "with ignored_params={{...}}.",
                     name, to_string(spec.placements()), along.dim());
    written.placements[shard_dim] = along;
    for (int64_t later = shard_dim + 1; later < mesh->ndim(); ++later)
      if (written.placements[later].split_dim() == along.dim()) written.split_factors[shard_dim] *= mesh->size(later);
  }
  const PlacedOn placed = placed_on_mesh(mesh, written, spec.dim());
  return Spec::intern(placed.mesh->on(spec.mesh()->device_type()), spec.sizes(), placed.placements, spec.strides(),
                      spec.dtype());
}

SpecPtr spec_of_plain_parts(const at::Tensor& tensor, const DataMesh& data, const Placement& along) {
  Placements placements(data.mesh->ndim());
  if (tensor.dim() > 0) placements.back() = along;
  return Spec::intern(data.mesh->on(tensor.device().type()), tensor.sizes(), std::move(placements), tensor.strides(),
                      tensor.scalar_type());
}

}  // namespace

DataMesh data_mesh(const MeshPtr& mesh, const std::vector<at::Tensor>& parameters) {
  SW_CHECK_VALUE(
      mesh->ndim() == 1 || mesh->ndim() == 2,
      "[fully_shard] fully_shard expects a 1D or 2D DeviceMesh but got DeviceMesh{}, which has {} dims. Give one, to "
      "shard over it, or two, to replicate over the first and shard over the second: mesh[\"dp\"].",
      to_string(*mesh), mesh->ndim());
  std::vector<MeshPtr> meshes{mesh};
  for (const at::Tensor& each : parameters)
    if (is_dtensor(each)) meshes.push_back(user_layout_of(*spec_of(each)).mesh);
  const GilRelease no_gil;  // the root may be new
  const MeshPtr root = common_root(meshes);
  return {mesh, root ? root : mesh->root()};
}

Placement default_split(const at::Tensor& parameter, const MeshPtr& mesh) {
  const auto* impl = maybe_dtensor(parameter);
  const int64_t n_ranks = mesh->size(mesh->ndim() - 1);
  const auto n_parts = [&](int64_t dim) {
    const bool has_given_sizes = impl && std::ranges::any_of(impl->spec()->placements(), [&](const Placement& each) {
                                   return each.split_dim() == dim && !each.is_chunk();
                                 });
    return has_given_sizes ? 0 : dim == 0 ? n_ranks : std::min(parameter.size(dim), n_ranks);
  };
  int64_t chosen = 0;
  for (int64_t dim = 1; dim < parameter.dim(); ++dim)
    if (n_parts(dim) > n_parts(chosen)) chosen = dim;
  return Placement::shard(chosen);
}

ShardedParameter::ShardedParameter(const std::string& name, const at::Tensor& parameter, const DataMesh& data,
                                   const Placement& along) {
  const Placement split = resolved(name, parameter, along);
  split_.is_sharded = parameter.dim() > 0;
  split_.dim = split.dim();
  int64_t begin = 0;
  if (is_dtensor(parameter)) {
    whole_ = spec_of(parameter);
    check_slice(name, *whole_, data);
    SW_CHECK_VALUE(whole_->layout().has_one_box_each() && !whole_->layout().has_terms(),
                   "[fully_shard] {} is placed as {}, which cannot be split along dim {} as a whole. Leave it out, "
                   "with ignored_params={{...}}, or redistribute it to Shards.",
                   name, to_string(whole_->placements()), split_.dim);
    spec_ = spec_of_parts(name, *whole_, data, split);
    sizes_ = whole_->is_member() ? whole_->boxes()[0].sizes : Dims(parameter.sizes());
    if (whole_->is_member() && split_.is_sharded) begin = whole_->boxes()[0].offsets[split_.dim];
  } else {
    spec_ = spec_of_plain_parts(parameter, data, split);
    sizes_ = Dims(parameter.sizes());
  }
  strides_ = dense_strides(sizes_, parameter.strides());
  if (!data.mesh->is_member()) return;
  index_ = data.shard_group()->index;
  for (const int64_t rank : data.shard_group()->ranks) {
    if (!split_.is_sharded) {
      split_.ranges.emplace_back();
      continue;
    }
    const Box box = spec_->layout().boxes(rank)[0];
    split_.ranges.push_back({box.sizes[split_.dim] > 0 ? box.offsets[split_.dim] - begin : 0, box.sizes[split_.dim]});
  }
}

at::Tensor ShardedParameter::part_of(const at::Tensor& parameter) const {
  const at::NoGradGuard no_grad;
  const c10::InferenceMode not_inference(false);
  Shards pieces;
  if (spec_->is_member()) {
    const BelowAutograd guard;
    const auto* const impl = maybe_dtensor(parameter);
    const at::Tensor whole = impl ? impl->local_tensors()[0] : parameter;
    if (is_subclass(whole)) {
      const Box held = Box::whole(whole.sizes());
      Box own = held;
      if (split_.is_sharded) {
        own.offsets[split_.dim] = split_.ranges[index_].begin;
        own.sizes[split_.dim] = split_.ranges[index_].size;
      }
      pieces.push_back(copy_of("fully_shard", shardwise::part_of("fully_shard", whole, held, own)));
    } else {
      const at::Tensor mine = part(whole.detach(), index_);
      pieces.push_back(at::empty_strided(mine.sizes(), dense_strides(mine.sizes(), spec_->strides()), mine.options()));
      pieces[0].copy_(mine);
    }
  }
  at::Tensor result = wrap(spec_, std::move(pieces));
  result.requires_grad_(parameter.requires_grad());
  return result;
}

SpecPtr ShardedParameter::whole_spec(c10::ScalarType dtype) const {
  if (!whole_) return nullptr;
  return Spec::intern(whole_->mesh(), whole_->layout(), whole_->strides(), dtype);
}

at::Tensor Split::part(const at::Tensor& whole, int64_t index) const {
  return is_sharded ? whole.narrow(dim, ranges[index].begin, ranges[index].size) : whole;
}

at::Tensor Split::slice(const at::Tensor& whole, int64_t index, int64_t n_slices) const {
  if (!is_sharded) return whole;
  const int64_t size = whole.size(dim), begin = size * index / n_slices;
  return whole.narrow(dim, begin, size * (index + 1) / n_slices - begin);
}

Dims ShardedParameter::part_sizes(int64_t index) const {
  Dims sizes = sizes_;
  if (split_.is_sharded) sizes[split_.dim] = split_.ranges[index].size;
  return sizes;
}

}  // namespace shardwise
