// ops/embedding/embedding_bag.cpp: sums, means and maxima of bags of rows, pooled before anything is sent where rows are cut and ids are not:
// then each rank pools the rows that it has.
//
// Where ids are cut, each rank's part must be of whole bags, else ids are gathered. Then plan_lookup() chooses: bags pooled by all and
// reduced, or rows fetched, each once, and pooled where the bags are.
#include "ops/embedding/bag_layout.h"
#include "ops/embedding/row_gradient.h"
#include "ops/embedding/table_lookup.h"
#include "ops/families.h"
#include "ops/kernels.h"
#include "placements/partial.h"
#include "runtime/below.h"
#include "runtime/dispatch.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/custom_function.h>

#include <limits>

namespace shardwise {
namespace {

using kernels::Pooling;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr const char* kOp = "aten::embedding_bag";

/// One call, and what its backward needs of it.
struct Call : torch::CustomClassHolder {
  Pooling pooling = Pooling::kSum;
  LookupOptions options;
  BagOffsets offsets;
  int64_t padding = -1;
  bool by_freq = false;
  GradientEnd end;

  TableLookup lookup;
  SpecPtr found;      // of the pooled rows, before they are moved
  IdBags bags;        // this rank's, by its ids or, along a route, by its places among the rows that came
  at::Tensor chosen;  // of maxima [bags, columns]: this rank's ids that were the largest, -1 of others
  at::Tensor rows;    // that came along a route, kept for the gradient of weights
  bool wants_weights = false;
};
using CallPtr = c10::intrusive_ptr<Call>;

/// `placements` of [ids, columns] as the spec of [bags, columns].
SpecPtr spec_of_bags(const Call& call, const Placements& placements) {
  const Spec& table = *call.lookup.table;
  const Dims sizes{call.offsets.n(), table.sizes()[1]};
  Placements of_bags = call.offsets.of_bags(table.mesh(), placements);
  if (call.pooling == Pooling::kMax)
    for (Placement& placement : of_bags)
      if (placement.is_partial()) placement = Placement::partial(Reduce::kMax);
  return Spec::intern(table.mesh(), sizes, std::move(of_bags), row_major_strides(sizes), table.dtype());
}

/// The piece of `weights` that goes with this rank's ids.
at::Tensor own_weights(const at::Tensor& weights) {
  return weights.defined() ? maybe_dtensor(weights)->shards()[0].contiguous() : weights;
}

/// This rank's bags; along a route their ids are places among the rows that come.
IdBags own_bags(const Call& call, const at::Tensor& weights) {
  const Interval ids = spec_of(call.lookup.ids)->boxes()[0].interval(0);
  const at::Tensor own = call.lookup.own_ids().contiguous();
  IdBags bags{own, call.offsets.within(ids, own.device()), call.padding, own_weights(weights)};
  if (!call.lookup.route) return bags;
  const IdGroups& groups = call.lookup.route->groups();
  bags.ids = groups.group_of;
  if (call.padding < 0) return bags;
  bags.padding =
      groups.n();  // no place of a row, but the padding's own: where its row is elsewhere it must not count either
  bags.ids = bags.ids.masked_fill(own.eq(call.padding), bags.padding);
  return bags;
}

/// Takes what is larger, or as large and of an earlier id.
void take_larger(const at::Tensor& values, const at::Tensor& chosen, const at::Tensor& others,
                 const at::Tensor& others_chosen) {
  const auto place = [](const at::Tensor& ids) {
    return ids.masked_fill(ids.lt(0), std::numeric_limits<int64_t>::max());
  };
  const at::Tensor is_earlier = place(others_chosen).lt(place(chosen));
  const at::Tensor is_larger = others.gt(values).logical_or_(others.eq(values).logical_and_(is_earlier));
  values.copy_(at::where(is_larger, others, values));
  chosen.copy_(at::where(is_larger, others_chosen, chosen));
}

/// Of a table of several pieces: each adds what it has in its columns.
at::Tensor pool_pieces(Call& call, c10::ArrayRef<at::Tensor> pieces, const at::TensorOptions& options) {
  const bool is_max = call.pooling == Pooling::kMax;
  const at::Tensor nothing = at::empty({0, call.lookup.table->sizes()[1]}, options);
  at::Tensor result = pool_rows(nothing, 0, call.bags, call.pooling, is_max ? &call.chosen : nullptr);
  for (size_t i = 0; i < pieces.size(); ++i) {
    const Box& box = call.lookup.table->boxes()[i];
    const auto band = [&](const at::Tensor& tensor) { return tensor.narrow(1, box.offsets[1], box.sizes[1]); };
    at::Tensor chosen;
    const at::Tensor pooled = pool_rows(pieces[i], box.offsets[0], call.bags, call.pooling, is_max ? &chosen : nullptr);
    if (is_max)
      take_larger(band(result), band(call.chosen), pooled, chosen);
    else
      band(result).add_(pooled);
  }
  return result;
}

/// This rank's results, before they are moved. Pre: a member.
at::Tensor pool_here(Call& call, c10::ArrayRef<at::Tensor> pieces, const at::TensorOptions& options) {
  at::Tensor* chosen = call.pooling == Pooling::kMax ? &call.chosen : nullptr;
  if (call.lookup.route) {
    call.rows = call.lookup.route->fetch(pieces);
    return pool_rows(call.rows, 0, call.bags, call.pooling, chosen);
  }
  if (call.lookup.table->layout().is_enumerable()) return pool_pieces(call, pieces, options);
  return pool_rows(pieces[0], call.lookup.table->boxes()[0].offsets[0], call.bags, call.pooling, chosen);
}

/// The maxima of all ranks' rows. Where several ranks have the largest, it came from the first id: the ranks tell each other their
/// places.
at::Tensor reduce_maxima(Call& call, const at::Tensor& found, bool needs_chosen) {
  const Spec& spec = *spec_of(found);
  const at::Tensor largest = redistribute(found, without_partial(spec.placements()));
  if (!needs_chosen) return largest;
  Placements of_places = spec.placements().vec();
  for (Placement& placement : of_places)
    if (placement.is_partial()) placement = Placement::partial(Reduce::kMin);
  const auto places_spec = Spec::intern(spec.mesh(), spec.sizes(), of_places, spec.strides(), at::kLong);
  Shards places;
  if (spec.is_member()) {
    const at::Tensor &mine = maybe_dtensor(found)->shards()[0], &all = maybe_dtensor(largest)->shards()[0];
    const at::Tensor is_largest = mine.eq(all).logical_or_(mine.isnan()).logical_and_(call.chosen.ge(0));
    places.push_back(call.chosen.masked_fill(is_largest.logical_not(), std::numeric_limits<int64_t>::max()));
  }
  const at::Tensor first = redistribute(wrap(places_spec, std::move(places)), without_partial(of_places));
  if (spec.is_member()) call.chosen.masked_fill_(call.chosen.ne(maybe_dtensor(first)->shards()[0]), -1);
  return largest;
}

at::Tensor pool(Call& call, const at::Tensor& weight, const at::Tensor& weights, bool needs_grad) {
  const BelowGuard guard;
  call.found = spec_of_bags(call, call.lookup.plan.found);
  Placements moved = spec_of_bags(call, call.lookup.plan.result)->placements().vec();
  Shards pieces;
  if (call.found->is_member()) {
    call.bags = own_bags(call, weights);
    pieces.push_back(pool_here(call, maybe_dtensor(weight)->shards(),
                               at::TensorOptions().dtype(weight.scalar_type()).device(weight.device())));
  }
  if (!needs_grad || !call.wants_weights) call.rows = at::Tensor();
  at::Tensor result = wrap(call.found, std::move(pieces));
  if (call.pooling == Pooling::kMax && call.found->layout().is_partial()) {
    result = reduce_maxima(call, result, needs_grad);
    moved = without_partial(moved);
  }
  return moved == spec_of(result)->placements() ? result : redistribute(result, std::move(moved));
}

struct Grads {
  at::Tensor table, weights;
};

/// Where the gradient of the weights lies: with their ids, Partial where ranks have other parts of the rows.
SpecPtr spec_of_weights_grad(const Call& call, const LookupBackwardPlan& plan, at::ScalarType dtype) {
  Placements placements = call.lookup.plan.ids;
  for (size_t m = 0; m < placements.size(); ++m) {
    if (!placements[m].is_replicate()) continue;
    if (!call.lookup.table->placements()[m].is_replicate()) placements[m] = Placement::partial();
    if (plan.grad[m].is_partial()) placements[m] = plan.grad[m];
  }
  const c10::IntArrayRef sizes = call.lookup.ids.sizes();
  return Spec::intern(call.lookup.table->mesh(), sizes, std::move(placements), row_major_strides(sizes), dtype);
}

at::Tensor own_weights_grad(const Call& call, c10::ArrayRef<at::Tensor> pieces, const RowGrads& grads) {
  if (call.lookup.route) return weights_grad(call.rows, 0, call.bags, grads);
  at::Tensor sum;
  for (size_t i = 0; i < pieces.size(); ++i) {
    const Box& box = call.lookup.table->boxes()[i];
    const at::Tensor part = weights_grad(pieces[i], box.offsets[0], call.bags, call.lookup.columns_of(box, grads));
    sum = sum.defined() ? sum.add_(part) : part;
  }
  return sum.defined() ? sum : at::zeros(call.bags.ids.sizes(), grads.values.options());
}

/// Gradients of the table, undefined where an optimizer took it, and of the weights. `weight`: of the weights' lookups, without a route.
Grads backward(const Call& call, const at::Tensor& grad, const at::Tensor& weight, bool of_table) {
  const BelowGuard guard;
  const CommScope scope("aten::embedding_bag_backward");
  Placements now = spec_of(grad)->placements().vec();
  if (call.end.is_complete() || call.wants_weights) now = without_partial(now);
  LookupPlan forward = call.lookup.plan;
  forward.found = call.found->placements().vec();
  const LookupBackwardPlan plan = plan_lookup_backward(*call.lookup.table, forward, now);
  const at::Tensor moved = redistribute(grad, plan.grad);
  const at::Tensor counts = call.by_freq ? call.lookup.counts() : at::Tensor();
  const SpecPtr& table = call.lookup.table;
  Grads result;
  std::vector<BoxGrads> boxes;
  Shards weights_pieces;
  if (table->is_member()) {
    RowGrads grads = grads_of_bags(maybe_dtensor(moved)->shards()[0], call.bags, call.pooling, call.chosen);
    if (call.wants_weights)
      weights_pieces.push_back(
          own_weights_grad(call, weight.defined() ? maybe_dtensor(weight)->shards() : Shards(), grads));
    if (call.by_freq) grads.scale(maybe_dtensor(counts)->shards()[0]);
    if (of_table) boxes = call.lookup.grads_of_boxes(grads);
  }
  if (call.wants_weights)
    result.weights = wrap(spec_of_weights_grad(call, plan, grad.scalar_type()), std::move(weights_pieces));
  if (of_table)
    result.table =
        call.end.take(Spec::intern(table->mesh(), table->sizes(), plan.table, table->strides(), grad.scalar_type()),
                      std::move(boxes), call.padding);
  return result;
}

struct EmbeddingBag : torch::autograd::Function<EmbeddingBag> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& weight, const std::optional<at::Tensor>& weights,
                            const CallPtr& call) {
    ctx->saved_data["call"] = c10::IValue::make_capsule(call);
    call->wants_weights = weights && weights->requires_grad();
    const at::Tensor result = pool(*call, weight, weights.value_or(at::Tensor()), /*needs_grad=*/true);
    // Along a route the rows that came are kept instead.
    ctx->save_for_backward({call->wants_weights && !call->lookup.route ? weight : at::Tensor(), call->lookup.ids});
    return result;
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    if (!grads[0].defined()) return {{}, {}, {}};
    TORCH_CHECK_NOT_IMPLEMENTED(
        !c10::GradMode::is_enabled() || !grads[0].requires_grad(),
        fmt::format("[{}] has no derivative of second order. Use embedding() and a sum, mean or amax.", kOp));
    const auto call = CallPtr::reclaim_copy(static_cast<Call*>(ctx->saved_data.at("call").toCapsule().get()));
    const Grads result = shardwise::backward(*call, grads[0], ctx->get_saved_variables()[0], ctx->needs_input_grad(0));
    return {result.table, result.weights, {}};
  }
};

/// Weights laid out as the ids.
at::Tensor prepared_weights(const Call& call, const std::optional<at::Tensor>& weights) {
  if (!weights || !weights->defined()) return {};
  TORCH_CHECK_VALUE(
      call.pooling == Pooling::kSum,
      fmt::format("[{}] per_sample_weights go with mode \"sum\" only. Leave them out of a mean or maximum.", kOp));
  TORCH_CHECK_VALUE(weights->sizes() == call.lookup.ids.sizes(),
                    fmt::format("[{}] per_sample_weights have shape [{}], the ids [{}]. Give one weight per id.", kOp,
                                fmt::join(weights->sizes(), ", "), fmt::join(call.lookup.ids.sizes(), ", ")));
  TORCH_CHECK_TYPE(weights->scalar_type() == call.lookup.table->dtype(),
                   fmt::format("[{}] per_sample_weights are {}, the table {}. Use one dtype.", kOp,
                               c10::toString(weights->scalar_type()), c10::toString(call.lookup.table->dtype())));
  at::Tensor own = *weights;
  const MeshPtr& mesh = call.lookup.table->mesh();
  if (!is_dtensor(own)) own = from_local(own, mesh, Placements(mesh->ndim()), {.shape = Dims(own.sizes())});
  return redistribute(own, call.lookup.plan.ids);
}

Pooling pooling_of(int64_t mode) {
  TORCH_CHECK_VALUE(mode >= 0 && mode <= 2,
                    fmt::format("[{}] there is no mode {}. Use 0 (sum), 1 (mean) or 2 (max).", kOp, mode));
  return mode == 0 ? Pooling::kSum : mode == 1 ? Pooling::kMean : Pooling::kMax;
}

/// Negative ones count from the last row; -1 where there is none.
int64_t padding_of(std::optional<int64_t> padding_idx, int64_t n_rows) {
  if (!padding_idx) return -1;
  TORCH_CHECK_VALUE(
      *padding_idx >= -n_rows && *padding_idx < n_rows,
      fmt::format("[{}] padding_idx {} is no row of the table: it has {} rows. Use one in [{}, {}), or none.", kOp,
                  *padding_idx, n_rows, -n_rows, n_rows));
  return *padding_idx < 0 ? *padding_idx + n_rows : *padding_idx;
}

/// The bags' ids where the lookup needs them. Ids that are cut within bags are gathered.
void start(Call& call, const at::Tensor& table, at::Tensor ids) {
  const BelowGuard guard;
  const auto gathered = [&] { return redistribute(ids, Placements(spec_of(table)->mesh()->ndim())); };
  if (!call.offsets.fit(spec_of(ids)->layout())) ids = gathered();
  const LookupPlan plan = plan_lookup(*spec_of(table), *spec_of(ids), call.options.exchange, call.offsets.n());
  if (!call.offsets.fit(spec_of(ids)->with_placements(plan.ids)->layout())) ids = gathered();  // cut anew there
  call.lookup = TableLookup::start(kOp, spec_of(table), ids, call.options, call.offsets.n());
}

using Results = std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor>;

/// torch's other three results are its backward's own; ours needs none.
Results with_nothing_else(at::Tensor result) {
  const auto none = [&] {
    return empty({0}, spec_of(result)->mesh(), Placements(spec_of(result)->mesh()->ndim()), at::kLong);
  };
  return {result, none(), none(), none()};
}

Results embed_bags(const at::Tensor& weight, const at::Tensor& indices, const at::Tensor& offsets, bool by_freq,
                   int64_t mode, bool sparse, const std::optional<at::Tensor>& per_sample_weights,
                   bool include_last_offset, std::optional<int64_t> padding_idx) {
  auto call = c10::make_intrusive<Call>();
  call->pooling = pooling_of(mode);
  const at::Tensor table = prepared_table(kOp, weight, /*passes_sums=*/call->pooling != Pooling::kMax);
  TORCH_CHECK_VALUE(indices.dim() == 1, fmt::format("[{}] ids of shape [{}] have {} dims. Give them flat.", kOp,
                                                    fmt::join(indices.sizes(), ", "), indices.dim()));
  call->options = LookupScope::current();
  call->by_freq = by_freq;
  call->padding = padding_of(padding_idx, table.size(0));
  at::Tensor ids = prepared_ids(kOp, indices, *spec_of(table), /*may_be_plain=*/true);
  call->offsets = BagOffsets::read(kOp, offsets, include_last_offset, ids.numel(), spec_of(table)->mesh());
  std::optional<at::Tensor> weights = per_sample_weights;
  if (const int64_t n_used = call->offsets.n_ids(); n_used < ids.numel()) {  // ids behind the last offset
    ids = ids.narrow(0, 0, n_used);
    if (weights && weights->defined()) weights = weights->narrow(0, 0, n_used);
  }
  start(*call, table, ids);
  weights = prepared_weights(*call, weights);
  const bool needs_grad =
      c10::GradMode::is_enabled() && (weight.requires_grad() || (weights->defined() && weights->requires_grad()));
  if (!needs_grad) return with_nothing_else(pool(*call, table, *weights, false));
  call->end = GradientEnd::of(weight, sparse);
  if (!weights->defined()) weights.reset();
  return with_nothing_else(EmbeddingBag::apply(table, weights, call));
}

Results embed_bags_unpadded(const at::Tensor& weight, const at::Tensor& indices, const at::Tensor& offsets,
                            bool by_freq, int64_t mode, bool sparse,
                            const std::optional<at::Tensor>& per_sample_weights, bool include_last_offset) {
  return embed_bags(weight, indices, offsets, by_freq, mode, sparse, per_sample_weights, include_last_offset, {});
}

}  // namespace

void register_embedding_bag() {
  add_composition("embedding_bag", &embed_bags_unpadded);
  add_composition("embedding_bag.padding_idx", &embed_bags);
}

}  // namespace shardwise
