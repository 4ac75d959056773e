#include "ops/indexing/masked_rows.h"

#include "ops/support/derivative.h"
#include "placements/placement_list.h"
#include "runtime/api/dtensor.h"
#include "runtime/comm/collectives.h"
#include "runtime/comm/comm_scope.h"
#include "runtime/comm/tracing.h"
#include "runtime/tensor/below_autograd.h"

#include <ATen/Functions.h>

namespace shardwise {
namespace {

/// The layouts of self and of the selection.
struct Specs {
  SpecPtr self, selected;
};

c10::List<std::optional<at::Tensor>> at_dim(const at::Tensor& mask, int64_t begin) {
  c10::List<std::optional<at::Tensor>> indices;
  indices.resize(begin + 1);
  indices.set(begin, mask);
  return indices;
}

const at::Tensor& piece_of(const at::Tensor& tensor) { return maybe_dtensor(tensor)->shards()[0]; }

at::Tensor spread(const at::Tensor& grad, const at::Tensor& mask, const Specs& specs, int64_t begin);

at::Tensor select(const at::Tensor& self, const at::Tensor& mask, const Specs& specs, int64_t begin) {
  const at::Tensor result = [&] {
    const BelowAutograd guard;
    return wrap(specs.selected, {at::index(piece_of(self), at_dim(piece_of(mask), begin))});
  }();
  carry_tangent(self, result, [&](const at::Tensor& tangent) { return at::index(tangent, at_dim(mask, begin)); });
  return with_derivative(
      self, result, {mask}, "MaskedIndexBackward",
      [=](const at::Tensor& grad, const variable_list& saved) { return spread(grad, saved[0], specs, begin); });
}

/// Zeros with self's sizes, and `grad` where the mask is true.
at::Tensor spread(const at::Tensor& grad, const at::Tensor& mask, const Specs& specs, int64_t begin) {
  const at::Tensor result = [&] {
    const at::NoGradGuard no_grad;
    const BelowAutograd guard;
    const auto layouts = [&] { return to_string(*specs.self); };
    const CommScope scope("aten::index_backward", CommScope::Cause::kOperator, layouts);
    const at::Tensor own = redistribute(grad, without_partial(specs.selected->placements()));
    auto spec = Spec::intern(specs.self->mesh(), specs.self->sizes(), without_partial(specs.self->placements()),
                             row_major_strides(specs.self->sizes()), grad.scalar_type());
    const at::Tensor piece =
        at::zeros(spec->boxes()[0].sizes, at::TensorOptions().dtype(spec->dtype()).device(grad.device()));
    piece.index_put_(at_dim(piece_of(mask), begin), piece_of(own));
    return wrap(std::move(spec), {piece});
  }();
  return with_derivative(
      grad, result, {mask}, "MaskedIndexBackwardBackward",
      [=](const at::Tensor& outer, const variable_list& saved) { return at::index(outer, at_dim(saved[0], begin)); });
}

/// True if mesh dim `m` shards dim `begin` of self like the mask, and no other mesh dim shards the mask's dims.
bool is_sharded_alike(const Spec& self, const Spec& mask, int64_t m, int64_t begin) {
  if (!self.layout().has_one_box_each() || mesh_dims_splitting(self.placements(), begin) != std::vector{m})
    return false;
  for (int64_t dim = begin + 1; dim < begin + mask.dim(); ++dim)
    if (self.layout().splits(dim)) return false;
  return self.layout().shard_intervals(begin) == mask.layout().shard_intervals(0);
}

/// Shards a replicated mask like dim `begin` of self, if only one mesh dim shards that dim. Returns any other mask as it is.
at::Tensor sharded_like(const Spec& self, const at::Tensor& mask, int64_t begin) {
  Placements placements = spec_of(mask)->placements().vec();
  const std::vector<int64_t> sharding = mesh_dims_splitting(self.placements(), begin);
  if (!spec_of(mask)->layout().is_replicated() || sharding.size() != 1) return mask;
  placements[sharding[0]] = self.placements()[sharding[0]].with_dim(0);
  return redistribute(mask, std::move(placements));
}

}  // namespace

std::optional<int64_t> only_row_shard(const at::Tensor& mask) {
  const c10::ArrayRef<Placement> placements = spec_of(mask)->placements();
  const std::vector<int64_t> differing = mesh_dims_that_differ(placements);
  const bool is_row_shard = differing.size() == 1 && placements[differing[0]].split_dim() == 0;
  return is_row_shard ? std::optional(differing[0]) : std::nullopt;
}

Dims counts_by_coord(const at::Tensor& mask, int64_t m, int64_t count) {
  const DeviceMesh& mesh = *spec_of(mask)->mesh();
  const Group& group = *mesh.group(m);
  const auto by_group = all_gather_numbers(group, {count});
  Dims counts, coord = *mesh.coord();
  for (coord[m] = 0; coord[m] < mesh.size(m); ++coord[m])
    counts.push_back(by_group[group.index_of(mesh.grid().rank_at(coord))][0]);
  return counts;
}

std::optional<at::Tensor> select_locally(const at::Tensor& self, const at::Tensor& of_self_mask, int64_t begin) {
  const SpecPtr& of_self = spec_of(self);
  if (!of_self->is_member() || of_self_mask.dim() == 0 || of_self_mask.scalar_type() != at::kBool) return std::nullopt;
  const at::Tensor mask = sharded_like(*of_self, of_self_mask, begin);
  const auto m = only_row_shard(mask);
  if (!m || !is_sharded_alike(*of_self, *spec_of(mask), *m, begin)) return std::nullopt;

  check_not_traced("an index that is a mask");
  const auto layouts = [&] { return to_string(*of_self); };
  const CommScope scope("aten::index.Tensor", CommScope::Cause::kOperator, layouts);
  const Dims counts = counts_by_coord(mask, *m, piece_of(mask).sum().item<int64_t>());
  Dims sizes(of_self->sizes());
  sizes.erase(sizes.begin() + begin, sizes.begin() + begin + mask.dim());
  sizes.insert(sizes.begin() + begin, c10::sum_integers(counts));
  Placements placements =
      renumbered(of_self->placements(), [&](int64_t dim) { return dim > begin ? dim - mask.dim() + 1 : dim; });
  placements[*m] = Placement::shard(begin, counts);
  const Specs specs{
      of_self, Spec::intern(of_self->mesh(), sizes, std::move(placements), row_major_strides(sizes), of_self->dtype())};
  return select(self, mask, specs, begin);
}

}  // namespace shardwise
