// ops/embedding/table_lookup.h: code shared by F.embedding and F.embedding_bag: checks of operands, and a lookup's ids, placements and row exchange.
#pragma once

#include "ops/embedding/lookup_plan.h"
#include "ops/embedding/row_exchange.h"

namespace shardwise {

/// `weight` as a table: distributed, 2-D, without Partials. With `passes_sums` linear Partials stay, because lookups preserve them (maxima do not).
/// Throws: c10::TypeError, c10::ValueError; on all ranks alike.
at::Tensor prepared_table(const char* op, const at::Tensor& weight, bool passes_sums = true);

/// A lookup's argument `arg` ("indices"), distributed over the table's mesh. A plain tensor counts as replicated if it has 0 dims or check_plain()
/// accepts it. Throws, on all ranks alike: c10::ValueError for other plain tensors and for another mesh.
at::Tensor distributed_operand(const char* op, std::string_view arg, const at::Tensor& operand, const MeshPtr& mesh);

/// `ids` as ids of `table`: a distributed_operand() of int64 or int32, without Partials.
at::Tensor prepared_ids(const char* op, const at::Tensor& ids, const Spec& table);

/// Throws: c10::ValueError for an index beyond the rows; a negative index means no padding.
void check_padding(const char* op, int64_t padding_idx, int64_t n_rows);

/// A lookup's ids, checked and placed as the plan says, and its row exchange, if any. The backward needs nothing else besides gradients.
struct TableLookup {
  const char* op = nullptr;
  SpecPtr table;
  LookupPlanPtr plan;
  at::Tensor ids;                           // distributed as plan->ids
  std::optional<RowExchange> row_exchange;  // nullopt if !plan->exchanges_rows(), on non-members, and for equal ids

  /// Collective over the mesh's members. `ids`: from prepared_ids(). `plan`: made for these ids. If plan->ids_are_equal, start() only compares ids.
  static TableLookup start(const char* op, const SpecPtr& table, const at::Tensor& ids, LookupPlanPtr plan,
                           const LookupOptions& options);

  /// This rank's ids, grouped by row of each of its boxes, with `group_of`.
  std::vector<IdGroups> own_groups() const;
  /// For equal ids: the lookup in which each rank wants the rows of its part of the ids, as `of_ids` shards them along mesh dims of the exchange. If
  /// `of_ids` shards none of these, all ranks want all rows. `own`: own_groups(), needed only if `of_ids` shards ids. Sends nothing.
  TableLookup of_parts(Placements of_ids, c10::ArrayRef<IdGroups> own = {}) const;

  /// The spec of the rows looked up, [ids..., columns].
  SpecPtr spec_of_rows(Placements placements) const;
  template <class Visit>
  void for_each_tensor(const Visit& visit) {
    visit(ids);
    if (row_exchange) row_exchange->for_each_tensor(visit);
  }

  /// True if each rank sends the gradients of its own ids to the owners of the rows.
  bool scatters_gradients() const { return row_exchange && plan->splits_ids(); }
  /// This rank's ids; empty on a non-member.
  at::Tensor own_ids() const;
  /// This rank's rows of the result, from its pieces of the table, which may be packed (packed_rows.h). Pre: a member. Collective among the ranks of
  /// the exchange.
  at::Tensor find_rows(c10::ArrayRef<at::Tensor> pieces, bool are_packed = false) const;
  /// 1 / (number of occurrences in the whole batch) for each id, laid out as `ids`, float64.
  at::Tensor counts() const;

  /// The gradient rows for each of this rank's boxes, from the gradient rows `grads` of this rank's ids in the columns of the lookup's result.
  /// Collective among the ranks of the exchange.
  std::vector<BoxGrads> grads_of_boxes(const RowGrads& grads) const;
  /// The columns of `box` in `grads`.
  RowGrads columns_of(const Box& box, const RowGrads& grads) const;
};

/// 1 / (number of occurrences in the whole batch) for each id, with the ids' shape, replicated. Not differentiable.
at::Tensor inverse_counts(const at::Tensor& ids, at::ScalarType dtype);

}  // namespace shardwise
