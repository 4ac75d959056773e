// ops/embedding/embedding.cpp: lookups in a table of any layout. The table is never redistributed: ids are sent to the ranks that own rows, or rows
// to the ranks that hold ids (lookup_plan.h decides).
//
// aten's derivative of embedding takes the number of rows, not their layout, so lookups have an autograd function of their own.
#include "ops/embedding/gradient_sink.h"
#include "ops/embedding/id_check.h"
#include "ops/embedding/lookup_operators.h"
#include "ops/embedding/lookup_terms.h"
#include "ops/embedding/saved_state.h"
#include "ops/embedding/table_lookup.h"
#include "ops/indexing/index.h"
#include "ops/indexing/index_operand.h"
#include "ops/support/derivative.h"
#include "ops/support/kernels.h"
#include "placements/placement_list.h"
#include "runtime/comm/tracing.h"
#include "runtime/rules/rule.h"
#include "runtime/tensor/below_autograd.h"

#include <ATen/ops/embedding.h>
#include <fmt/format.h>

namespace shardwise {
namespace {

using torch::autograd::variable_list;

constexpr const char* kEmbedding = "aten::embedding";

TableLookup start_lookup(const SpecPtr& table, const at::Tensor& ids, const LookupOptions& options) {
  return TableLookup::start(kEmbedding, table, ids, plan_lookup(table, spec_of(ids), options), options);
}

/// The rows of equal ids, as a Partial sum in which each row has one owner.
at::Tensor terms_of(const TableLookup& lookup, const at::Tensor& weight, ShardedLookup sharded) {
  const auto terms = std::make_shared<LookupTerms>(lookup, maybe_dtensor(weight)->shards(), std::move(sharded));
  at::Tensor result = wrap(lookup.plan->rows, {});
  maybe_dtensor(result)->set_pending(terms);
  maybe_dtensor(result)->set_owned_rows(terms);
  return result;
}

/// `sharded`: receives the lookup for the backward, if a move of the result sends each rank the rows of a part of equal ids.
at::Tensor look_up(const TableLookup& lookup, const at::Tensor& weight, ShardedLookup sharded) {
  const SpecPtr& found = lookup.plan->rows;
  if (lookup.plan->ids_are_equal && found->is_member()) return terms_of(lookup, weight, std::move(sharded));
  Shards pieces;
  if (found->is_member()) pieces.push_back(lookup.find_rows(maybe_dtensor(weight)->shards()));
  const at::Tensor result = wrap(found, std::move(pieces));
  return lookup.plan->result == lookup.plan->found ? result : redistribute(result, lookup.plan->result);
}

ShardedLookup no_sharded_lookup() { return std::make_shared<std::atomic<std::shared_ptr<const TableLookup>>>(); }

/// The arguments of a call that its backward needs.
struct CallOptions {
  LookupOptions lookup;
  int64_t padding_idx = -1;
  bool by_freq = false;
  GradientSink sink;
  ShardedLookup sharded = no_sharded_lookup();
};

/// True if `a` and `b` differ along all of these mesh dims and no others.
bool differ_along(const std::vector<bool>& along, const Placements& a, const Placements& b) {
  for (size_t m = 0; m < along.size(); ++m)
    if ((a[m] != b[m]) != along[m]) return false;
  return true;
}

/// The backward's lookup if ids are replicated but their gradients are sharded. It is planned anew with ids sharded as the gradients, so that each
/// rank sends its gradient rows to their owners. nullopt if such a plan would send no gradients to owners.
std::optional<TableLookup> sharded_as(const Spec& grad, const TableLookup& lookup, const CallOptions& call) {
  Placements of_ids = lookup.plan->ids;
  for (size_t m = 0; m < of_ids.size(); ++m) {
    const Placement& of_grad = grad.placements()[m];
    const bool splits_ids = of_grad.split_dim() >= 0 && of_grad.split_dim() < lookup.ids.dim();
    if (of_ids[m].is_whole() && splits_ids && !lookup.table->placements()[m].is_whole()) of_ids[m] = of_grad;
  }
  if (lookup.scatters_gradients() || of_ids == lookup.plan->ids) return std::nullopt;
  if (const auto known = call.sharded->load(); known && known->plan->ids == of_ids) return *known;
  if (lookup.plan->ids_are_equal && lookup.table->is_member() &&
      differ_along(lookup.plan->exchange_along, of_ids, lookup.plan->ids))
    return lookup.of_parts(of_ids, lookup.own_groups());
  LookupOptions options = call.lookup;
  options.checks_ids = false;  // the forward checked them
  TableLookup again = start_lookup(lookup.table, redistribute(lookup.ids, of_ids), options);
  if (!again.scatters_gradients() && again.table->is_member()) return std::nullopt;
  return again;
}

/// The gradient rows of this rank's ids. `counts`: undefined, or TableLookup::counts().
RowGrads own_grads(const TableLookup& lookup, const at::Tensor& grad, const at::Tensor& counts) {
  const at::Tensor& piece = maybe_dtensor(grad)->shards()[0];
  RowGrads rows{piece.reshape({lookup.own_ids().numel(), piece.size(-1)})};
  if (rows.values.stride(1) != 1) rows.values = rows.values.contiguous();
  if (counts.defined()) rows.scale(maybe_dtensor(counts)->shards()[0].reshape(-1));
  return rows;
}

/// The table's gradient, laid out as the table, but Partial where ranks looked up different ids. Undefined if an optimizer took it.
at::Tensor table_grad(const at::Tensor& grad, const TableLookup& forward, const CallOptions& call) {
  const BelowAutograd guard;
  const CommScope scope("aten::embedding_backward");
  const std::optional<TableLookup> again = sharded_as(*spec_of(grad), forward, call);
  const TableLookup& lookup = again ? *again : forward;
  Placements now = spec_of(grad)->placements().vec();
  if (call.sink.is_complete()) now = without_partial(now);
  const LookupBackwardPlan plan = plan_lookup_backward(*lookup.table, lookup.plan->found, now);
  const auto spec = Spec::intern(lookup.table->mesh(), lookup.table->sizes(), plan.table, lookup.table->strides(),
                                 grad.scalar_type());
  const at::Tensor moved = redistribute(grad, plan.grad);
  const at::Tensor counts = call.by_freq ? lookup.counts() : at::Tensor();
  std::vector<BoxGrads> boxes;
  if (spec->is_member()) boxes = lookup.grads_of_boxes(own_grads(lookup, moved, counts));
  return call.sink.take(spec, std::move(boxes), call.padding_idx);
}

/// table_grad() with a derivative, which is again a lookup. Without one if an optimizer takes the gradient or the gradient is sparse.
at::Tensor differentiable_table_grad(const at::Tensor& grad, const TableLookup& lookup, const CallOptions& call) {
  at::Tensor result = table_grad(grad, lookup, call);
  if (call.sink.is_complete()) return result;
  return with_derivative(grad, std::move(result), {lookup.ids}, "EmbeddingGradBackward",
                         [call](const at::Tensor& table, const variable_list& saved) {
                           const at::Tensor& ids = saved[0];
                           const LookupScope scope(call.lookup);
                           at::Tensor rows = at::embedding(table, ids);
                           if (call.padding_idx >= 0) rows = rows * ids.ne(call.padding_idx).unsqueeze(-1);
                           if (call.by_freq) rows = rows * inverse_counts(ids, rows.scalar_type()).unsqueeze(-1);
                           return rows;
                         });
}

/// A lookup in a traced program, whose messages may not depend on values: each rank indexes its rows and columns, with the derivative of indexing. The
/// ids are checked when the graph runs.
at::Tensor embed_in_graph(const at::Tensor& weight, const at::Tensor& ids, int64_t padding_idx, bool has_options) {
  check_no_optimizer_traced(weight);
  const at::Tensor table = prepared_table(kEmbedding, weight);
  check_padding(kEmbedding, padding_idx, table.size(0));
  at::Tensor own = prepared_ids(kEmbedding, ids, *spec_of(table));
  const LookupOptions& options = LookupScope::current();
  const LookupPlanPtr plan = plan_lookup(spec_of(table), spec_of(own), options);
  if (has_options || (plan->exchanges_rows() && !plan->ids_are_equal)) check_not_traced("embedding lookup");
  const auto check = [n_rows = table.size(0)](int64_t lowest, int64_t highest) {
    IdBounds{lowest, highest}.check(kEmbedding, n_rows);
  };
  const auto words = [&] { return fmt::format("ids of {} rows", table.size(0)); };
  if (options.checks_ids) own = checked_range(own, words, check);
  at::Tensor rows = redistribute(shardwise::look_up(table, {{own}, {0}, /*from_end=*/false}), plan->result);
  if (padding_idx < 0 || !rows.requires_grad()) return rows;
  return with_derivative(rows, rows.detach(), {own}, "EmbeddingPaddingBackward",
                         [=](const at::Tensor& grad, const variable_list& saved) {
                           return grad * saved[0].ne(padding_idx).unsqueeze(-1);
                         });
}

at::Tensor embed(const at::Tensor& weight, const at::Tensor& ids, int64_t padding_idx, bool by_freq, bool sparse) {
  if (is_tracing()) [[unlikely]]
    return embed_in_graph(weight, ids, padding_idx, by_freq || sparse);
  const at::Tensor table = prepared_table(kEmbedding, weight);
  check_padding(kEmbedding, padding_idx, table.size(0));
  const BelowAutograd guard;
  const at::Tensor own = prepared_ids(kEmbedding, ids, *spec_of(table));
  return look_up(start_lookup(spec_of(table), own, LookupScope::current()), table, no_sharded_lookup());
}

at::Tensor differentiable_embed(const at::Tensor& weight, const at::Tensor& ids, int64_t padding_idx, bool by_freq,
                                bool sparse) {
  if (is_tracing()) [[unlikely]]
    return embed_in_graph(weight, ids, padding_idx, by_freq || sparse);
  const auto carried = [&](const at::Tensor& rows) {
    carry_tangent(weight, rows, [&](const at::Tensor& tangent) {
      return differentiable_embed(tangent, ids, /*padding_idx=*/-1, false, false);
    });
    return rows;
  };
  if (!weight.requires_grad() || !c10::GradMode::is_enabled())
    return carried(embed(weight, ids, padding_idx, by_freq, sparse));
  const at::Tensor table = prepared_table(kEmbedding, weight);
  check_padding(kEmbedding, padding_idx, table.size(0));
  const CallOptions call{LookupScope::current(), padding_idx, by_freq,
                         GradientSink::compared(kEmbedding, weight, sparse)};
  const at::Tensor own = prepared_ids(kEmbedding, ids, *spec_of(table));
  TableLookup lookup;
  at::Tensor result;
  {
    const BelowAutograd guard;
    lookup = start_lookup(spec_of(table), own, call.lookup);
    result = look_up(lookup, table, call.sharded);
  }
  const variable_list saved = take_tensors(lookup);
  return with_derivative(table, carried(result), saved, "EmbeddingBackward",
                         [call, lookup](const at::Tensor& grad, const variable_list& tensors) {
                           return differentiable_table_grad(grad, with_tensors(lookup, tensors), call);
                         });
}

/// For tables of a tensor class, whose rows only the class can look up: each rank looks up its ids in all rows.
void describe_whole_rows(const OpCall& call, Signature& signature) {
  const int row = signature.add_factor(call.operands[0].sizes[0]),
            column = signature.add_factor(call.operands[0].sizes[1]);
  signature.factors[row].is_whole = true;
  Axes ids = signature.add_factors(call.operands[1].sizes);
  signature.inputs = {Axes{{row}, {column}}, ids};
  signature.outputs = {ids};
  signature.outputs[0].push_back({column});
}

}  // namespace

void register_embedding(RuleTable& table) {
  table.add("aten::embedding", Rule("embedding", describe_whole_rows));
  aten_kernels().impl_in_memory("embedding", &embed);
  aten_autograd_kernels().impl_in_memory("embedding", &differentiable_embed);
}

}  // namespace shardwise
