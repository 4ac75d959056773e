// ops/embedding/table_lookup.h: what F.embedding and F.embedding_bag share: operands checked, ids where they are needed, rows of the
// table or the way to them.
#pragma once

#include "ops/embedding/lookup_plan.h"
#include "ops/embedding/row_route.h"

namespace shardwise {

/// `weight` as a table: distributed, 2-D, and without Partials but sums, which lookups pass on (and maxima of them do not).
/// Throws: c10::TypeError, c10::ValueError; on all ranks alike.
at::Tensor prepared_table(const char* op, const at::Tensor& weight, bool passes_sums = true);

/// `ids` as ids of `table`: distributed over its mesh, of int64 or int32, without Partials. A plain tensor counts as replicated where it is
/// of 0 dims, where `may_be_plain` and under implicit replication.
at::Tensor prepared_ids(const char* op, const at::Tensor& ids, const Spec& table, bool may_be_plain = false);

/// Throws: c10::ValueError where it is no row; negative is none.
void check_padding(const char* op, int64_t padding_idx, int64_t n_rows);

/// A lookup's ids where it needs them, in range, and the route along which it asks for rows, if any. Everything that its backward needs
/// but gradients.
struct TableLookup {
  const char* op;
  SpecPtr table;
  LookupPlan plan;
  at::Tensor ids;                         // distributed as plan.ids
  std::shared_ptr<const RowRoute> route;  // null where plan asks nobody, and on non-members

  /// Collective over the mesh's members; ids are those of prepared_ids(), `plan` one for them.
  static TableLookup start(const char* op, const SpecPtr& table, const at::Tensor& ids, LookupPlan plan,
                           const LookupOptions& options);

  /// Of the rows looked up, [ids..., columns], laid out as `placements`.
  SpecPtr spec_of_rows(Placements placements) const;
  /// Gradients go back along the route: each rank has those of its own ids.
  bool gives() const { return route && !plan.are_known; }
  /// This rank's ids; empty on a non-member.
  at::Tensor own_ids() const;
  /// 1 / how often each id occurs in the whole batch, laid out as `ids`, float64.
  at::Tensor counts() const;

  /// What each of this rank's boxes gets of the gradient rows `grads` of this rank's ids, in the columns that it was found in. Collective
  /// along the route.
  std::vector<BoxGrads> grads_of_boxes(const RowGrads& grads) const;
  /// Of `grads` the columns of `box`.
  RowGrads columns_of(const Box& box, const RowGrads& grads) const;
};

/// 1 / how often each id occurs in the whole batch, of the ids' shape, replicated. Not differentiable.
at::Tensor inverse_counts(const at::Tensor& ids, at::ScalarType dtype);

}  // namespace shardwise
