// ops/embedding/table_lookup.h: what F.embedding and F.embedding_bag share: checks of operands, ids where the table's rows are, and the
// exchange that brings rows to ids.
#pragma once

#include "ops/embedding/lookup_plan.h"
#include "ops/embedding/row_exchange.h"

namespace shardwise {

/// `weight` as a table: distributed, 2-D, without Partials. With `passes_sums` linear Partials stay: lookups pass them on (maxima do not).
/// Throws: c10::TypeError, c10::ValueError; on all ranks alike.
at::Tensor prepared_table(const char* op, const at::Tensor& weight, bool passes_sums = true);

/// A lookup's argument `arg` ("indices"), distributed over the table's mesh; a plain tensor of 0 dims, and one that check_plain() lets
/// pass, counts as replicated. Throws: c10::ValueError for another plain one and another mesh; on all ranks alike.
at::Tensor distributed_operand(const char* op, std::string_view arg, const at::Tensor& operand, const MeshPtr& mesh);

/// `ids` as ids of `table`: a distributed_operand() of int64 or int32, without Partials.
at::Tensor prepared_ids(const char* op, const at::Tensor& ids, const Spec& table);

/// Throws: c10::ValueError for an index beyond the rows; a negative one means no padding.
void check_padding(const char* op, int64_t padding_idx, int64_t n_rows);

/// A lookup's ids, moved to where it needs them and in range, and the exchange that brings rows, if any. All that its backward needs
/// besides gradients.
struct TableLookup {
  const char* op = nullptr;
  SpecPtr table;
  LookupPlanPtr plan;
  at::Tensor ids;  // distributed as plan->ids
  std::optional<RowExchange>
      row_exchange;  // none where plan->exchanges_rows() is false, on non-members, and of equal ids

  /// Collective over the mesh's members; ids are those of prepared_ids(), `plan` one for them. Of equal ids it only compares them.
  static TableLookup start(const char* op, const SpecPtr& table, const at::Tensor& ids, LookupPlanPtr plan,
                           const LookupOptions& options);

  /// This rank's ids, grouped by row of each of its boxes, with `group_of`.
  std::vector<IdGroups> own_groups() const;
  /// The lookup in which each rank wants the rows of its part of equal ids, as `of_ids` shards them along mesh dims of the exchange; if it
  /// shards none, all ranks want all. `own`: own_groups(), needed where it shards them. Sends nothing.
  TableLookup of_parts(Placements of_ids, c10::ArrayRef<IdGroups> own = {}) const;

  /// The spec of the rows looked up, [ids..., columns].
  SpecPtr spec_of_rows(Placements placements) const;
  template <class Visit>
  void for_each_tensor(const Visit& visit) {
    visit(ids);
    if (row_exchange) row_exchange->for_each_tensor(visit);
  }

  /// True where gradients go back to the rows' owners, each rank sending those of its own ids.
  bool scatters_gradients() const { return row_exchange && plan->splits_ids(); }
  /// This rank's ids; empty on a non-member.
  at::Tensor own_ids() const;
  /// 1 / how often each id occurs in the whole batch, laid out as `ids`, float64.
  at::Tensor counts() const;

  /// The gradient rows for each of this rank's boxes, from the gradient rows `grads` of this rank's ids in the columns that were found.
  /// Collective among the ranks of the exchange.
  std::vector<BoxGrads> grads_of_boxes(const RowGrads& grads) const;
  /// The columns of `box` in `grads`.
  RowGrads columns_of(const Box& box, const RowGrads& grads) const;
};

/// 1 / how often each id occurs in the whole batch, of the ids' shape, replicated. Not differentiable.
at::Tensor inverse_counts(const at::Tensor& ids, at::ScalarType dtype);

}  // namespace shardwise
