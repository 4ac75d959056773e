#include "ops/embedding/bag_lookup.h"
#include "placements/placement_list.h"
#include "runtime/comm/comm_scope.h"
#include "runtime/tensor/below_autograd.h"

#include <ATen/ops/zeros.h>

namespace shardwise {
namespace {

/// The layout of the weights' gradient: placed as the ids, but Partial where ranks have different parts of the rows.
SpecPtr spec_of_weights_grad(const BagLookup& call, const Placements& of_grad, at::ScalarType dtype) {
  Placements placements = call.lookup.plan->ids;
  for (size_t m = 0; m < placements.size(); ++m) {
    if (!placements[m].is_whole()) continue;
    const Placement& of_table = call.lookup.table->placements()[m];
    if (!of_table.is_whole()) placements[m] = of_table.terms() ? of_table : Placement::partial();
    if (of_grad[m].terms()) placements[m] = of_grad[m];
  }
  const c10::IntArrayRef sizes = call.lookup.plan->rows->sizes().slice(0, 1);  // of the ids
  return Spec::intern(call.lookup.table->mesh(), sizes, std::move(placements), row_major_strides(sizes), dtype);
}

at::Tensor own_weights_grad(const BagLookup& call, c10::ArrayRef<at::Tensor> pieces, const RowGrads& grads) {
  if (call.lookup.row_exchange) return weights_grad(call.rows, 0, call.bags, grads);
  at::Tensor sum;
  for (size_t i = 0; i < pieces.size(); ++i) {
    const Box& box = call.lookup.table->boxes()[i];
    const at::Tensor part = weights_grad(pieces[i], box.offsets[0], call.bags, call.lookup.columns_of(box, grads));
    sum = sum.defined() ? sum.add_(part) : part;
  }
  return sum.defined() ? sum : at::zeros(call.bags.ids.sizes(), grads.values.options());
}

}  // namespace

BagGradientSpecs specs_of_gradients(const BagLookup& call, const Spec& grad) {
  const Spec& table = *call.lookup.table;
  Placements now = grad.placements().vec();
  if (call.sink.is_complete() || call.wants_weights) now = without_partial(now);
  LookupBackwardPlan plan = plan_lookup_backward(table, call.found->placements(), now);
  BagGradientSpecs specs;
  if (call.wants_weights) specs.weights = spec_of_weights_grad(call, plan.grad, grad.dtype());
  specs.table = Spec::intern(table.mesh(), table.sizes(), std::move(plan.table), table.strides(), grad.dtype());
  specs.needed = std::move(plan.grad);
  return specs;
}

BagGradients bag_gradients(const BagLookup& call, const at::Tensor& grad, bool of_table) {
  const BelowAutograd guard;
  const CommScope scope("aten::embedding_bag_backward");
  const BagGradientSpecs specs = specs_of_gradients(call, *spec_of(grad));
  const at::Tensor moved = redistribute(grad, specs.needed);
  const at::Tensor counts = call.by_freq ? call.lookup.counts() : at::Tensor();
  BagGradients result;
  std::vector<BoxGrads> boxes;
  Shards weights_pieces;
  if (specs.table->is_member()) {
    RowGrads grads = grads_of_bags(maybe_dtensor(moved)->shards()[0], call.bags, call.pooling, call.chosen);
    if (call.wants_weights)
      weights_pieces.push_back(
          own_weights_grad(call, call.table.defined() ? maybe_dtensor(call.table)->shards() : Shards(), grads));
    if (call.by_freq) grads.scale(maybe_dtensor(counts)->shards()[0]);
    if (of_table) boxes = call.lookup.grads_of_boxes(grads);
  }
  if (call.wants_weights) result.weights = wrap(specs.weights, std::move(weights_pieces));
  if (of_table) result.table = call.sink.take(specs.table, std::move(boxes), call.padding);
  return result;
}

}  // namespace shardwise
