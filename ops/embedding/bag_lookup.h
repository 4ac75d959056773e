// ops/embedding/bag_lookup.h: one pooled lookup, forward (bag_lookup.cpp) and backward (bag_gradient.cpp), below autograd.
//
// Where rows are cut and ids are not, each rank pools the rows that it has, and nothing is sent but the sums. Where ids are cut,
// plan_lookup() chooses: bags pooled by all and reduced, or rows fetched, each once, and pooled where the bags are.
#pragma once

#include "ops/embedding/bag_layout.h"
#include "ops/embedding/row_gradient.h"
#include "ops/embedding/table_lookup.h"

namespace shardwise {

/// What was asked for, and what the backward needs of the forward.
struct BagLookup : torch::CustomClassHolder {
  kernels::Pooling pooling = kernels::Pooling::kSum;
  LookupOptions options;
  BagOffsets offsets;
  int64_t padding = -1;  // an id that does not count
  bool by_freq = false;
  bool wants_weights = false;  // a gradient of the weights of ids, too
  GradientSink end;

  TableLookup lookup;
  SpecPtr found;      // of the pooled rows, before they are moved
  IdBags bags;        // this rank's, by its ids or, along a route, by its places among the rows that came
  at::Tensor chosen;  // of maxima [bags, columns]: this rank's ids that were the largest, -1 of others
  at::Tensor rows;    // that came along a route, kept for the gradient of weights
};

/// The pooled rows of `table`, laid out as plan_lookup() has it. `weights`: undefined, or laid out as the lookup's ids. `needs_grad`: a
/// backward will follow. Pre: `lookup` was started. Collective over the mesh's members where something moves.
at::Tensor pool_bags(BagLookup& call, const at::Tensor& table, const at::Tensor& weights, bool needs_grad);

struct BagGradients {
  at::Tensor table;    // undefined where an optimizer took it, or nobody wants it
  at::Tensor weights;  // undefined where nobody wants it
};
/// `grad`: of the result. `table`: wanted for the gradient of weights without a route only.
BagGradients bag_gradients(const BagLookup& call, const at::Tensor& grad, const at::Tensor& table, bool of_table);

}  // namespace shardwise
