// ops/embedding/gradient_sink.h: what becomes of a table's gradient rows: a dense gradient of this rank's rows, a sparse one, or an
// optimizer's update of the rows at once.
#pragma once

#include "ops/embedding/hot_rows.h"
#include "ops/embedding/row_exchange.h"
#include "ops/embedding/row_optimizer.h"
#include "runtime/api/dtensor.h"

#include <memory>

namespace shardwise {

struct GradientSink {
  bool is_sparse = false;
  std::shared_ptr<RowOptimizer> optimizer;  // null: the gradient is the caller's
  at::Tensor table;                         // only with an optimizer
  std::vector<HotRowsPtr> caches;           // of the table's pieces, null for those without rows; none: it has no cache

  /// `weight`: the leaf that lookups are differentiated by.
  static GradientSink of(const at::Tensor& weight, bool is_sparse);
  /// The same for a lookup by `op`. Throws: under the order check, c10::ValueError on all ranks of the table's mesh where one of them has
  /// another sink, so that it would send something else in the backward.
  static GradientSink compared(const char* op, const at::Tensor& weight, bool is_sparse);
  /// "dense gradient", "fused optimizer, row-wise Adagrad".
  std::string words() const;

  /// Sparse gradients and updates take the gradients of replicated rows from all ranks; dense ones may stay Partial.
  bool is_complete() const { return is_sparse || optimizer; }

  /// Throws: c10::NotImplementedError, in the name of `op`, for a table on meta whose rows would have to be told apart.
  void check_dense_on_meta(const char* op) const;

  /// Of a table with a cache. Throws: c10::NotImplementedError, in the name of `op`, for an optimizer that cannot update rows there. The same
  /// on all ranks.
  void check_cached(const char* op, const Spec& spec) const;

  /// The gradient of layout `spec`, from this rank's gradient rows for each of its boxes. The id `skipped` has no gradient. Sparse
  /// gradients are coalesced and hold only rows with ids; the result is undefined where an optimizer took it. Dense gradients cost the
  /// memory of this rank's rows, the others that of the rows with ids. Collective over the mesh's members where `spec` is Partial, or
  /// where a row-wise optimizer or LAMB needs sums over rows whose columns are sharded.
  at::Tensor take(const SpecPtr& spec, std::vector<BoxGrads> boxes, int64_t skipped) const;
  /// The same of gradient rows that are grouped already. Pre: `spec` is not Partial, or gradients are dense.
  at::Tensor take_groups(const SpecPtr& spec, c10::ArrayRef<BoxGroups> boxes) const;

  /// True where an optimizer updates each of this rank's boxes without messages and without a cache, so that the boxes of several tables may
  /// share a call. The same on all ranks, but for those that have no rows of a table with caches.
  bool updates_alone(const Spec& spec) const;
  /// Begins that optimizer's step: this rank's boxes as update_rows() takes them. Pre: updates_alone().
  std::vector<UpdatedRows> begin_update() const;
};

}  // namespace shardwise
