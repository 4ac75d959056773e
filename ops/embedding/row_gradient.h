// ops/embedding/row_gradient.h: what becomes of the gradient rows of a table: a dense gradient of this rank's rows, a sparse one, or an
// update of the rows at once.
#pragma once

#include "ops/embedding/row_optimizer.h"
#include "ops/embedding/row_route.h"
#include "runtime/dtensor.h"

namespace shardwise {

/// `boxes`: per box of `spec`, the layout of the gradient, this rank's share of the gradient rows. Ids that are `skipped` count nothing.

/// Dense, of layout `spec`; Partial where `spec` says that other ranks have more of it. Cost: the memory of this rank's rows.
at::Tensor dense_gradient(const SpecPtr& spec, c10::ArrayRef<BoxGrads> boxes, int64_t skipped);

/// Sparse, of the rows named and no others, coalesced; where `spec` is Partial the ranks exchange what they have.
/// Collective over the mesh's members.
at::Tensor sparse_gradient(const SpecPtr& spec, std::vector<BoxGrads> boxes, int64_t skipped);

/// Goes into `table` at once and is nowhere stored. Collective over the mesh's members.
void apply_gradient(const at::Tensor& table, RowOptimizer& optimizer, const SpecPtr& spec, std::vector<BoxGrads> boxes,
                    int64_t skipped);

}  // namespace shardwise
