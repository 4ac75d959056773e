// ops/embedding/row_gradient.h: where the gradient rows of a table go: into a dense gradient of this rank's rows, a sparse one, or into
// the rows at once.
#pragma once

#include "ops/embedding/row_optimizer.h"
#include "ops/embedding/row_route.h"
#include "runtime/api/dtensor.h"

#include <memory>

namespace shardwise {

struct GradientSink {
  bool is_sparse = false;
  std::shared_ptr<RowOptimizer> optimizer;  // null: the gradient is the caller's
  at::Tensor table;                         // only with an optimizer

  /// `weight`: the leaf that lookups are differentiated by.
  static GradientSink of(const at::Tensor& weight, bool is_sparse);

  /// Sparse gradients and updates take the gradients of replicated rows from all ranks; dense ones may stay Partial.
  bool is_complete() const { return is_sparse || optimizer; }

  /// The gradient of layout `spec`, given this rank's share for each box of it; ids that are `skipped` count nothing. Sparse ones are
  /// coalesced and hold the rows named, no others; undefined where an optimizer took it. Dense ones cost the memory of this rank's rows,
  /// the others that of the rows named. Collective over the mesh's members where `spec` is Partial or row-wise sums are over cut rows.
  at::Tensor take(const SpecPtr& spec, std::vector<BoxGrads> boxes, int64_t skipped) const;
};

}  // namespace shardwise
