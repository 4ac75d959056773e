// ops/embedding/bag_lookup.h: one pooled lookup, forward (bag_lookup.cpp) and backward (bag_gradient.cpp), below autograd.
//
// Where rows are sharded and ids are not, each rank pools the rows that it has, and only the sums are sent. Where ids are sharded,
// plan_lookup() chooses: bags pooled by all ranks and reduced, or rows fetched, each once, and pooled where the bags are.
#pragma once

#include "ops/embedding/bag_offsets.h"
#include "ops/embedding/gradient_sink.h"
#include "ops/embedding/table_lookup.h"

namespace shardwise {

/// The arguments of a call, and what the backward needs from the forward.
struct BagLookup {
  kernels::Pooling pooling = kernels::Pooling::kSum;
  LookupOptions options;
  BagOffsets offsets;
  int64_t padding = -1;  // an id that does not count; -1: none
  bool by_freq = false;
  bool wants_weights = false;  // the weights of ids need a gradient
  GradientSink sink;

  TableLookup lookup;
  SpecPtr found;      // of the pooled rows, before they are moved
  IdBags bags;        // this rank's. With a row exchange their ids index the rows that arrived
  at::Tensor chosen;  // of maxima [bags, columns]: the id whose row has the maximum, -1 where another rank has it
  at::Tensor rows;    // for the gradient of weights: the rows that arrived by a row exchange ...
  at::Tensor table;   // ... or the table, where there was none

  /// Those that the backward needs.
  template <class Visit>
  void for_each_tensor(const Visit& visit) {
    lookup.for_each_tensor(visit);
    bags.for_each_tensor(visit);
    for (at::Tensor* tensor : {&chosen, &rows, &table}) visit(*tensor);
  }
};

/// The pooled rows of `table`, laid out as the lookup's plan says. `weights`: undefined, or laid out as the lookup's ids. `needs_grad`: a
/// backward may follow. Pre: `lookup` was started. Collective over the mesh's members where something moves.
at::Tensor pool_bags(BagLookup& call, const at::Tensor& table, const at::Tensor& weights, bool needs_grad);

struct BagGradients {
  at::Tensor table;    // undefined where an optimizer took it, or it is not needed
  at::Tensor weights;  // undefined where it is not needed
};
/// `grad`: of the result. `of_table`: whether the table's gradient is needed.
BagGradients bag_gradients(const BagLookup& call, const at::Tensor& grad, bool of_table);

}  // namespace shardwise
