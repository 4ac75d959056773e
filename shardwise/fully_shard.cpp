#include "shardwise/fully_shard.h"

#include "placements/placement_list.h"
#include "shardwise/local_parts.h"
#include "shardwise/module_calls.h"

#include <ATen/ops/empty.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/nn/modules/embedding.h>

#include <algorithm>
#include <map>
#include <unordered_set>

namespace shardwise {
namespace {

using torch::nn::Module;

/// One parameter, and its new placements.
struct Sharding {
  TiedPlaces places;
  Placements placements;  // on the root
  Placements gathered;    // the same, whole along the mesh
};

class Sharder {
 public:
  Sharder(Module& module, const Mesh& mesh) : root_(mesh.root()), data_dims_(dims_in_root(mesh)) {
    const auto inner = parameters_of_units(module);
    for (TiedPlaces& places : parameters_of(module)) {
      if (inner.contains(places[0].tensor().unsafeGetTensorImpl())) continue;
      Placements placements = placements_of(places[0]);
      check_replaceable("fully_shard", places);
      Placements gathered = placements;
      const int64_t n_dims = places[0].tensor().dim();
      if (n_dims > 0) placements[data_dims_.back()] = Shard(free_dim(placements, n_dims));
      shardings_.push_back({std::move(places), std::move(placements), std::move(gathered)});
    }
    for (const auto& item : module.named_modules())
      if (const auto layouts = call_layouts_of(*item.value()))
        check_slice(layouts->mesh, [&] { return fmt::format("calls of {} are laid out", kind_of(*item.value())); });
  }

  const std::vector<Sharding>& shardings() const { return shardings_; }
  const std::vector<int64_t>& data_dims() const { return data_dims_; }

  /// The mesh dim of the root that is dim `mesh_dim` of `slice`. Pre: `slice` is a slice of the root, or the root itself.
  int64_t dim_in_root(const MeshPtr& slice, int64_t mesh_dim) const {
    return slice == root_ ? mesh_dim : root_->dim_of(slice->names()[mesh_dim]);
  }

 private:
  /// The parameters of modules that were fully sharded before, over the same mesh.
  std::unordered_set<const c10::TensorImpl*> parameters_of_units(Module& module) const {
    std::unordered_set<const c10::TensorImpl*> result;
    for (const auto& item : module.named_modules()) {
      const auto layouts = call_layouts_of(*item.value());
      if (!layouts || layouts->batch_dims.empty()) continue;
      TORCH_CHECK_VALUE(
          layouts->mesh == root_ && layouts->batch_dims == data_dims_,
          fmt::format(
              "[fully_shard] {} is fully sharded already, over dim {} of {}, not over dim {} of {}. Fully shard a "
              "model and the modules inside it over one mesh: of two dims, to replicate over the first.",
              item.key().empty() ? kind_of(*item.value()) : item.key(), fmt::join(layouts->batch_dims, " and "),
              to_string(*layouts->mesh), fmt::join(data_dims_, " and "), to_string(*root_)));
      for (const at::Tensor& parameter : item.value()->parameters()) result.insert(parameter.unsafeGetTensorImpl());
    }
    return result;
  }

  /// The present placements of the parameter, on the root.
  Placements placements_of(const ParameterPlace& place) {
    Placements result(root_->ndim());
    const at::Tensor& tensor = place.tensor();
    if (!is_dtensor(tensor)) return result;
    const Spec& spec = *spec_of(tensor);
    check_slice(spec.mesh(), [&] { return fmt::format("{} lives", place.full_name()); });
    for (int64_t mesh_dim = 0; mesh_dim < spec.mesh()->ndim(); ++mesh_dim) {
      const int64_t in_root = dim_in_root(spec.mesh(), mesh_dim);
      TORCH_CHECK_VALUE(std::ranges::count(data_dims_, in_root) == 0,
                        fmt::format("[fully_shard] {} is already placed as {} on {}, a mesh over which fully_shard "
                                    "would shard it. Parallelize over another dim: parallelize_module(model, "
                                    "mesh[\"tp\"], ...), and fully_shard(model, mesh[\"dp\"]).",
                                    place.full_name(), to_string(spec.placements()), to_string(*spec.mesh())));
      result[in_root] = spec.placements()[mesh_dim];
    }
    return result;
  }

  /// `what()`: "up.weight lives".
  template <class What>
  void check_slice(const MeshPtr& mesh, const What& what) {
    TORCH_CHECK_VALUE(is_slice(mesh),
                      fmt::format("[fully_shard] {} on the mesh {}, which is neither {} nor a slice of it. Slice "
                                  "both from one mesh: mesh[\"tp\"] and mesh[\"dp\"].",
                                  what(), to_string(*mesh), to_string(*root_)));
  }

  bool is_slice(const MeshPtr& mesh) {
    if (mesh == root_) return true;
    const auto [known, is_new] = is_slice_.emplace(mesh, false);
    const auto& names = root_->names();
    if (is_new && !mesh->names().empty() &&
        std::ranges::all_of(mesh->names(), [&](const auto& name) { return std::ranges::count(names, name) > 0; }))
      known->second = root_->submesh(mesh->names()) == mesh;
    return known->second;
  }

  /// The first tensor dim that no other mesh dim shards, so that gathering along it sends each element once; 0 if all are sharded.
  static int64_t free_dim(const Placements& placements, int64_t n_dims) {
    for (int64_t dim = 0; dim < n_dims; ++dim)
      if (!splits(placements, dim)) return dim;
    return 0;
  }

  MeshPtr root_;
  std::vector<int64_t> data_dims_;
  std::vector<Sharding> shardings_;
  std::map<MeshPtr, bool> is_slice_;
};

/// All values of a parameter, plain, on every rank; a rank outside its mesh has their sizes.
at::Tensor whole(const at::Tensor& parameter) {
  const at::Tensor values = parameter.detach();
  if (!is_dtensor(values)) return values;
  const Spec& spec = *spec_of(values);
  return spec.is_member() ? full_tensor(values)
                          : at::empty(spec.sizes(), at::TensorOptions(spec.dtype()).device(spec.mesh()->device()));
}

/// True for a table that only Embedding modules use, which read rows.
bool is_looked_up(const TiedPlaces& places) {
  return std::ranges::all_of(places, [](const ParameterPlace& place) {
    return dynamic_cast<const torch::nn::EmbeddingImpl*>(place.module) ||
           dynamic_cast<const torch::nn::EmbeddingBagImpl*>(place.module);
  });
}

}  // namespace

void fully_shard(Module& module, const Mesh& mesh, const FullyShardOptions& options) {
  TORCH_CHECK_VALUE(mesh.ndim() <= 2,
                    fmt::format("[fully_shard] the mesh {} has {} dims. Give one, to shard over it, or "
                                "two, to replicate over the first and shard over the second.",
                                to_string(*mesh), mesh.ndim()));
  claim_modules("fully_shard", module, *mesh);
  const Mesh root = mesh.root();
  const Sharder sharder(module, mesh);
  std::vector<DTensor> sharded;  // all of them, before the first is put in place
  for (const Sharding& each : sharder.shardings()) {
    const at::Tensor& present = each.places[0].tensor();
    name_parameter("fully_shard", each.places[0].full_name(), [&] {
      const at::Tensor values = whole(present).detach().requires_grad_(present.requires_grad());
      sharded.push_back(distribute_tensor(values, root, each.placements, options.src_data_rank));
    });
  }
  for (size_t i = 0; i < sharded.size(); ++i)
    for (const ParameterPlace& place : sharder.shardings()[i].places) place.replace(sharded[i]);

  make_call_layouts(module, root);
  for (const auto& item : module.named_modules())
    if (const auto layouts = call_layouts_of(*item.value())) {
      layouts->mesh_dim = sharder.dim_in_root(layouts->mesh, layouts->mesh_dim);
      layouts->mesh = root;
      layouts->batch_dims = sharder.data_dims();
    }
  CallLayouts& layouts = make_call_layouts(module, root);
  layouts.reshards_unit = options.reshard_after_forward;
  for (const Sharding& each : sharder.shardings())
    if (!is_looked_up(each.places)) layouts.unit.push_back({each.places, each.gathered});
}

}  // namespace shardwise
