#include "ops/embedding/bag_lookup.h"

#include "ops/embedding/packed_rows.h"
#include "placements/placement_list.h"
#include "runtime/tensor/below_autograd.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/where.h>

#include <limits>

namespace shardwise {
namespace {

using kernels::Pooling;

/// `placements` of [ids, columns] as the spec of [bags, columns].
SpecPtr spec_of_bags(const BagLookup& call, const Placements& placements) {
  const Spec& table = *call.lookup.table;
  const Dims sizes{call.offsets.n(), table.sizes()[1]};
  Placements of_bags = call.offsets.of_bags(table.mesh(), placements);
  if (call.pooling == Pooling::kMax) of_bags = with_reduce(of_bags, Reduce::kMax);
  return Spec::intern(table.mesh(), sizes, std::move(of_bags), row_major_strides(sizes), table.dtype());
}

/// The piece of `weights` that goes with this rank's ids.
at::Tensor own_weights(const at::Tensor& weights) {
  return weights.defined() ? maybe_dtensor(weights)->shards()[0].contiguous() : weights;
}

/// This rank's bags. With a row exchange, their ids become indices of the rows that arrive.
IdBags own_bags(const BagLookup& call, const at::Tensor& weights) {
  const Interval ids = spec_of(call.lookup.ids)->boxes()[0].interval(0);
  const at::Tensor own = call.lookup.own_ids().contiguous();
  IdBags bags{own, call.offsets.within(ids, own.device()), call.padding, own_weights(weights)};
  if (!call.lookup.row_exchange) return bags;
  const IdGroups& groups = call.lookup.row_exchange->groups();
  bags.ids = groups.group_of;
  if (call.padding < 0) return bags;
  bags.padding = groups.n();  // an index beyond all groups: padding is skipped even if no partner owns its row
  bags.ids = bags.ids.masked_fill(own.eq(call.padding), bags.padding);
  return bags;
}

/// Replaces values by larger ones (NaN is the largest), and by equal ones that came from an earlier id.
void take_larger(const at::Tensor& values, const at::Tensor& chosen, const at::Tensor& others,
                 const at::Tensor& others_chosen) {
  const auto place = [](const at::Tensor& ids) {
    return ids.masked_fill(ids.lt(0), std::numeric_limits<int64_t>::max());
  };
  const at::Tensor is_earlier = place(others_chosen).lt(place(chosen));
  const at::Tensor is_equal = others.eq(values).logical_or_(others.isnan().logical_and_(values.isnan()));
  const at::Tensor is_larger = others.gt(values)
                                   .logical_or_(others.isnan().logical_and_(values.isnan().logical_not()))
                                   .logical_or_(is_equal.logical_and_(is_earlier));
  values.copy_(at::where(is_larger, others, values));
  chosen.copy_(at::where(is_larger, others_chosen, chosen));
}

/// Pools the rows of the bags that piece number `box` has.
at::Tensor pool_piece(const BagLookup& call, const at::Tensor& piece, size_t box, const at::TensorOptions& options,
                      at::Tensor* chosen) {
  const Box& at = call.lookup.table->boxes()[box];
  if (!call.is_packed) return pool_rows(piece, at.offsets[0], call.bags, call.pooling, chosen);
  return pool_packed_rows(piece, at.sizes[1], c10::typeMetaToScalarType(options.dtype()), at.offsets[0], call.bags,
                          call.pooling, chosen);
}

/// For a table in several pieces per rank: each piece adds its rows in its columns.
at::Tensor pool_pieces(BagLookup& call, c10::ArrayRef<at::Tensor> pieces, const at::TensorOptions& options) {
  const bool is_max = call.pooling == Pooling::kMax;
  const at::Tensor nothing = at::empty({0, call.lookup.table->sizes()[1]}, options);
  at::Tensor result = pool_rows(nothing, 0, call.bags, call.pooling, is_max ? &call.chosen : nullptr);
  for (size_t i = 0; i < pieces.size(); ++i) {
    const Box& box = call.lookup.table->boxes()[i];
    const auto column_block = [&](const at::Tensor& tensor) { return tensor.narrow(1, box.offsets[1], box.sizes[1]); };
    at::Tensor chosen;
    const at::Tensor pooled = pool_piece(call, pieces[i], i, options, is_max ? &chosen : nullptr);
    if (is_max)
      take_larger(column_block(result), column_block(call.chosen), pooled, chosen);
    else
      column_block(result).add_(pooled);
  }
  return result;
}

/// This rank's results, before they are moved. Pre: a member.
at::Tensor pool_here(BagLookup& call, c10::ArrayRef<at::Tensor> pieces, const at::TensorOptions& options) {
  at::Tensor* chosen = call.pooling == Pooling::kMax ? &call.chosen : nullptr;
  if (call.lookup.row_exchange) {
    const RowExchange& exchange = *call.lookup.row_exchange;
    call.rows = call.is_packed ? exchange.fetch_packed(pieces) : exchange.fetch(pieces);
    return pool_rows(call.rows, 0, call.bags, call.pooling, chosen);
  }
  if (!call.lookup.table->layout().has_one_box_each()) return pool_pieces(call, pieces, options);
  return pool_piece(call, pieces[0], 0, options, chosen);
}

/// The maxima over all ranks' rows. If several ranks have the maximum, the first id wins: the smallest index over the ranks.
at::Tensor reduce_maxima(BagLookup& call, const at::Tensor& found, bool needs_chosen) {
  const Spec& spec = *spec_of(found);
  const at::Tensor largest = redistribute(found, without_partial(spec.placements()));
  if (!needs_chosen) return largest;
  const Placements of_places = with_reduce(spec.placements(), Reduce::kMin);
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

}  // namespace

at::Tensor pool_bags(BagLookup& call, const at::Tensor& weight, const at::Tensor& weights, bool needs_grad) {
  return pool_bags_of(call, maybe_dtensor(weight)->shards(),
                      at::TensorOptions().dtype(weight.scalar_type()).device(weight.device()), weights, needs_grad);
}

SpecPtr spec_of_found(const BagLookup& call) { return spec_of_bags(call, call.lookup.plan->found); }

SpecPtr spec_of_result(const BagLookup& call) {
  const SpecPtr result = spec_of_bags(call, call.lookup.plan->result);
  return call.pooling == Pooling::kMax ? result->reduced() : result;
}

void locate_bags(BagLookup& call, const at::Tensor& weights) {
  const BelowAutograd guard;
  call.found = spec_of_found(call);
  if (call.found->is_member()) call.bags = own_bags(call, weights);
}

at::Tensor pool_bags_of(BagLookup& call, c10::ArrayRef<at::Tensor> pieces_of_table, const at::TensorOptions& like,
                        const at::Tensor& weights, bool needs_grad) {
  const BelowAutograd guard;
  locate_bags(call, weights);
  Shards pieces;
  if (call.found->is_member()) pieces.push_back(pool_here(call, pieces_of_table, like));
  if (!needs_grad || !call.wants_weights) call.rows = at::Tensor();
  at::Tensor result = wrap(call.found, std::move(pieces));
  if (call.pooling == Pooling::kMax && call.found->layout().has_terms())
    result = reduce_maxima(call, result, needs_grad);
  const bool stays = call.lookup.plan->result == call.lookup.plan->found && call.pooling != Pooling::kMax;
  const SpecPtr wanted = stays ? call.found : spec_of_result(call);
  return wanted->placements() == spec_of(result)->placements() ? result
                                                               : redistribute(result, wanted->placements().vec());
}

}  // namespace shardwise
