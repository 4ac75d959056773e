#include "shardwise/dealt_parameter.h"

#include "runtime/tensor/below_autograd.h"
#include "runtime/tensor/reordered_mesh.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <c10/core/InferenceMode.h>
#include <fmt/format.h>

#include <algorithm>

namespace shardwise {
namespace {

bool has_name(const DeviceMesh& mesh, const std::string& name) { return std::ranges::count(mesh.names(), name) > 0; }

/// The slice of the root that `mesh` is, by names; nothing else has a place beside the data's mesh.
void check_slice(const std::string& name, const Spec& spec, const DataMesh& data) {
  const DeviceMesh &mesh = *spec.mesh()->with_memory(), &root = *data.root;
  const bool is_beside = !mesh.names().empty() && data.mesh != data.root &&
                         std::ranges::all_of(mesh.names(), [&](const auto& each) { return has_name(root, each); }) &&
                         (mesh.names() == root.names() ? data.root : data.root->submesh(mesh.names())).get() == &mesh;
  const bool has_data_dims =
      spec.mesh()->with_memory() == data.mesh ||
      (is_beside && std::ranges::any_of(mesh.names(), [&](const auto& each) { return has_name(*data.mesh, each); }));
  TORCH_CHECK_VALUE(!has_data_dims,
                    fmt::format("[fully_shard] {} is placed as {} on {} already, the mesh over which it would be "
                                "sharded. Leave it out, with ignored_params={{...}}, or lay it out on the other mesh "
                                "dims alone: parallelize_module(model, mesh[\"tp\"], ...).",
                                name, to_string(spec.placements()), to_string(mesh)));
  TORCH_CHECK_VALUE(
      is_beside,
      fmt::format("[fully_shard] {} lives on the mesh {}, and is to be sharded over {}, which are not slices of "
                  "one mesh. Make them so: mesh[\"tp\"] and mesh[\"dp\"].",
                  name, to_string(mesh), to_string(*data.mesh)));
}

/// The mesh of the data's dims and of those that the parameter is on, in the root's order.
MeshPtr joined_mesh(const Spec& spec, const DataMesh& data) {
  std::vector<std::string> names;
  for (const std::string& each : data.root->names())
    if (has_name(*data.mesh, each) || has_name(*spec.mesh(), each)) names.push_back(each);
  return names == data.root->names() ? data.root : data.root->submesh(names);
}

/// `spec` with its first tensor dim split among the sharding ranks, within what each of them has.
SpecPtr dealt_spec(const std::string& name, const Spec& spec, const DataMesh& data) {
  const MeshPtr mesh = joined_mesh(spec, data);
  WrittenPlacements written{Placements(mesh->ndim()), std::vector<int64_t>(mesh->ndim(), 1)};
  for (int64_t dim = 0; dim < spec.mesh()->ndim(); ++dim)
    written.placements[mesh->dim_of(spec.mesh()->names()[dim])] = spec.placements()[dim];
  if (spec.dim() > 0) {
    const int64_t shard_dim = mesh->dim_of(data.mesh->names().back());
    for (int64_t dim = 0; dim < mesh->ndim(); ++dim)
      TORCH_CHECK_VALUE(!written.placements[dim].is_shard(0) || written.placements[dim].sizes().empty(),
                        fmt::format("[fully_shard] {} is placed as {}: parts of given sizes along dim 0 cannot be "
                                    "split again. Leave it out, with ignored_params={{...}}, or shard it evenly.",
                                    name, to_string(spec.placements())));
    written.placements[shard_dim] = Placement::shard(0);
    for (int64_t later = shard_dim + 1; later < mesh->ndim(); ++later)
      if (written.placements[later].is_shard(0)) written.split_factors[shard_dim] *= mesh->size(later);
  }
  const Home home = home_of(mesh, written, spec.dim());
  return Spec::intern(home.mesh->on(spec.mesh()->device_type()), spec.sizes(), home.placements, spec.strides(),
                      spec.dtype());
}

SpecPtr dealt_plain_spec(const at::Tensor& tensor, const DataMesh& data) {
  Placements placements(data.mesh->ndim());
  if (tensor.dim() > 0) placements.back() = Placement::shard(0);
  return Spec::intern(data.mesh->on(tensor.device().type()), tensor.sizes(), std::move(placements), tensor.strides(),
                      tensor.scalar_type());
}

}  // namespace

void check_data_mesh(const DataMesh& data) {
  TORCH_CHECK_VALUE(data.mesh->ndim() == 1 || data.mesh->ndim() == 2,
                    fmt::format("[fully_shard] the mesh {} has {} dims. Give one, to shard over it, or two, to "
                                "replicate over the first and shard over the second: mesh[\"dp\"].",
                                to_string(*data.mesh), data.mesh->ndim()));
}

DealtParameter::DealtParameter(const std::string& name, const at::Tensor& parameter, const DataMesh& data)
    : is_sharded_(parameter.dim() > 0) {
  int64_t begin = 0;
  if (is_dtensor(parameter)) {
    whole_ = spec_of(parameter);
    check_slice(name, *whole_, data);
    const auto splits_dims = [](const Placement& each) { return each.is_replicate() || each.is_shard(); };
    TORCH_CHECK_VALUE(std::ranges::all_of(whole_->placements(), splits_dims),
                      fmt::format("[fully_shard] {} is placed as {}, which cannot be split along dim 0 as a whole. "
                                  "Leave it out, with ignored_params={{...}}, or redistribute it to Shards.",
                                  name, to_string(whole_->placements())));
    spec_ = dealt_spec(name, *whole_, data);
    sizes_ = whole_->is_member() ? whole_->boxes()[0].sizes : Dims(parameter.sizes());
    if (whole_->is_member() && is_sharded_) begin = whole_->boxes()[0].offsets[0];
  } else {
    spec_ = dealt_plain_spec(parameter, data);
    sizes_ = Dims(parameter.sizes());
  }
  strides_ = dense_strides(sizes_, parameter.strides());
  if (!data.mesh->is_member()) return;
  index_ = data.shard_group()->index;
  for (const int64_t rank : data.shard_group()->ranks) {
    if (!is_sharded_) {
      rows_.emplace_back();
      continue;
    }
    const Box box = spec_->layout().boxes(rank)[0];
    rows_.push_back({box.sizes[0] > 0 ? box.offsets[0] - begin : 0, box.sizes[0]});
  }
}

at::Tensor DealtParameter::deal(const at::Tensor& parameter) const {
  const at::NoGradGuard no_grad;
  const c10::InferenceMode not_inference(false);
  Shards pieces;
  if (spec_->is_member()) {
    const BelowAutograd guard;
    const auto* const impl = maybe_dtensor(parameter);
    const at::Tensor whole = impl ? impl->shards()[0] : parameter.detach();
    const at::Tensor mine = part(whole, index_);
    pieces.push_back(at::empty_strided(mine.sizes(), dense_strides(mine.sizes(), spec_->strides()), mine.options()));
    pieces[0].copy_(mine);
  }
  at::Tensor result = wrap(spec_, std::move(pieces));
  result.requires_grad_(parameter.requires_grad());
  return result;
}

SpecPtr DealtParameter::whole_spec(c10::ScalarType dtype) const {
  if (!whole_) return nullptr;
  return Spec::intern(whole_->mesh(), whole_->layout(), whole_->strides(), dtype);
}

at::Tensor DealtParameter::part(const at::Tensor& whole, int64_t index) const {
  return is_sharded_ ? whole.narrow(0, rows_[index].begin, rows_[index].size) : whole;
}

Dims DealtParameter::part_sizes(int64_t index) const {
  Dims sizes = sizes_;
  if (is_sharded_) sizes[0] = rows_[index].size;
  return sizes;
}

int64_t DealtParameter::n_elements(int64_t index) const { return c10::multiply_integers(part_sizes(index)); }

}  // namespace shardwise
