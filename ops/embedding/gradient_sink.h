// ops/embedding/gradient_sink.h: the destination of a table's gradient rows: a dense gradient of this rank's rows, a sparse gradient, or an optimizer
// that updates the rows at once.
#pragma once

#include "ops/embedding/hot_rows.h"
#include "ops/embedding/row_exchange.h"
#include "ops/embedding/row_optimizer.h"
#include "runtime/api/dtensor.h"

#include <memory>

namespace shardwise {

/// Gradient rows of a table, for each of this rank's boxes.
struct TableGrads {
  SpecPtr spec;
  std::vector<BoxGrads> boxes;
};

/// Adds the gradient rows of other ranks along the mesh dims where `spec` is Partial, because ranks looked up different ids there, and makes these
/// Replicate. Rows that no rank looked up have no gradient. The id `skipped` has none either. Pre: all tables are Partial on the same mesh dims.
/// Messages: as rows_of_ranks() per such dim. Collective over the mesh's members.
void complete(c10::ArrayRef<TableGrads*> tables, int64_t skipped);

struct GradientSink {
  bool is_sparse = false;
  std::shared_ptr<RowOptimizer> optimizer;  // null: the caller gets the gradient
  at::Tensor table;                         // only with an optimizer
  std::vector<HotRowsPtr> caches;  // one per piece of the table, null for a piece without rows; empty: no cache

  /// `weight`: the leaf tensor with respect to which lookups are differentiated.
  static GradientSink of(const at::Tensor& weight, bool is_sparse);
  /// The same for a lookup by `op`. Throws: under the order check, c10::ValueError on all ranks of the table's mesh if their sinks differ, because
  /// their backwards would send different messages.
  static GradientSink compared(const char* op, const at::Tensor& weight, bool is_sparse);
  /// "dense gradient", "fused optimizer, row-wise Adagrad".
  std::string words() const;

  /// True if replicated rows need the sum of all ranks' gradients, as sparse gradients and updates do. Dense gradients may stay Partial.
  bool is_complete() const { return is_sparse || optimizer; }

  /// For a table with a cache. Throws: c10::NotImplementedError, in the name of `op` and on all ranks alike, for an optimizer that cannot update
  /// cached rows.
  void check_cached(const char* op, const Spec& spec) const;

  /// Returns the gradient with layout `spec`, from this rank's gradient rows for each of its boxes. The id `skipped` has no gradient. Sparse
  /// gradients are coalesced and hold only rows with ids; the result is undefined if an optimizer took it. Memory: a dense gradient has all of this
  /// rank's rows; sparse gradients and updates have only the rows with ids. Collective over the mesh's members if a sparse gradient or an update has
  /// a Partial `spec`, or if a row-wise optimizer or LAMB needs sums over rows whose columns are sharded.
  at::Tensor take(const SpecPtr& spec, std::vector<BoxGrads> boxes, int64_t skipped) const;
  /// The same for gradient rows that are already grouped. Pre: `spec` is not Partial, or gradients are dense.
  at::Tensor take_groups(const SpecPtr& spec, c10::ArrayRef<BoxGroups> boxes) const;

  /// True if an optimizer updates each of this rank's boxes without messages and without a cache, so that the boxes of several tables may share a
  /// call. Equal on all ranks, except those without rows of a table that has caches.
  bool updates_alone(const Spec& spec) const;
  /// Begins the optimizer's step. Returns this rank's boxes as update_rows() takes them. Pre: updates_alone().
  std::vector<UpdatedRows> begin_update() const;
};

}  // namespace shardwise
