// ops/embedding/bag_lookup.h: one pooled lookup, forward (bag_lookup.cpp) and backward (bag_gradient.cpp), below autograd.
//
// If rows are sharded and ids are not, each rank pools the rows that it has, and only the sums are sent. If ids are sharded, plan_lookup() chooses
// one of two ways: all ranks pool all bags and reduce the results, or each rank fetches the rows of its bags, each row once, and pools them.
#pragma once

#include "ops/embedding/bag_offsets.h"
#include "ops/embedding/gradient_sink.h"
#include "ops/embedding/table_lookup.h"

namespace shardwise {

inline constexpr const char* kEmbeddingBag = "aten::embedding_bag";

/// The arguments of a call, and what the backward needs from the forward.
struct BagLookup {
  kernels::Pooling pooling = kernels::Pooling::kSum;
  LookupOptions options;
  BagOffsets offsets;
  int64_t padding = -1;  // an id that does not count; -1: none
  bool by_freq = false;
  bool wants_weights = false;  // the weights of ids need a gradient
  bool is_packed = false;      // the table's pieces are packed, see packed_rows.h: there is no backward then
  GradientSink sink;

  TableLookup lookup;
  SpecPtr found;      // the layout of the pooled rows before they are moved
  IdBags bags;        // this rank's bags; with a row exchange, their ids index the rows that arrived
  at::Tensor chosen;  // for maxima, [bags, columns]: index of the id with the maximum, -1 if another rank has it
  at::Tensor rows;    // for the gradient of weights: the rows that arrived by a row exchange ...
  at::Tensor table;   // ... or the table, if there was no exchange

  /// Visits the tensors that the backward needs.
  template <class Visit>
  void for_each_tensor(const Visit& visit) {
    lookup.for_each_tensor(visit);
    bags.for_each_tensor(visit);
    for (at::Tensor* tensor : {&chosen, &rows, &table}) visit(*tensor);
  }
};

/// The pooled rows of `table`, laid out as the lookup's plan says. `weights`: undefined, or laid out as the lookup's ids. `needs_grad`: a backward
/// may follow. Pre: `lookup` was started. Collective over the mesh's members if data moves.
at::Tensor pool_bags(BagLookup& call, const at::Tensor& table, const at::Tensor& weights, bool needs_grad);

/// The same for this rank's pieces of a table. Pieces have the table's dtype, or are packed if `call.is_packed`. `like`: dtype and device of the
/// result.
at::Tensor pool_bags_of(BagLookup& call, c10::ArrayRef<at::Tensor> pieces, const at::TensorOptions& like,
                        const at::Tensor& weights, bool needs_grad);

/// Sets `call.found` and `call.bags` alone, as pool_bags() does.
void locate_bags(BagLookup& call, const at::Tensor& weights);
/// The layouts of the bags before they are moved, and of the result of pool_bags(). Pre: `call` has a table, offsets and a plan.
SpecPtr spec_of_found(const BagLookup& call);
SpecPtr spec_of_result(const BagLookup& call);

/// Checks the arguments of F.embedding_bag apart from offsets. `ids` and `weights` become distributed; `weights` may be undefined. `mode`: 0 sum, 1
/// mean, 2 max. Throws, on all ranks alike: c10::ValueError, c10::TypeError.
BagLookup prepare_bags(const SpecPtr& table, at::Tensor& ids, int64_t mode, at::Tensor& weights,
                       std::optional<int64_t> padding_idx);
/// Plans the lookup of prepared bags. Returns the layout in which the plan takes the ids: they are gathered if their shards begin within bags.
SpecPtr plan_bags(BagLookup& call, SpecPtr ids);
/// Prepares and plans bags, moves `ids` and `weights` to where the lookup needs them, and starts the lookup. Throws, on all ranks alike: as
/// prepare_bags() and BagOffsets::read(), and c10::IndexError.
BagLookup start_bags(const SpecPtr& table, at::Tensor ids, const at::Tensor& offsets, int64_t mode, at::Tensor& weights,
                     bool include_last_offset, std::optional<int64_t> padding_idx);

/// The arguments of F.embedding_bag that are no tensors.
struct BagArguments {
  int64_t mode;
  bool by_freq, include_last_offset;
  std::optional<int64_t> padding_idx;
  LookupOptions options;
};
/// F.embedding_bag in a traced program: a step of its graph pools the bags, another one gives the gradients. The result is laid out as for bags of equal
/// lengths; for other lengths that do not fit the shards of the ids, the step moves it there.
at::Tensor pool_bags_in_graph(const at::Tensor& table, at::Tensor ids, const at::Tensor& offsets, at::Tensor weights,
                              const BagArguments& arguments);

struct BagGradients {
  at::Tensor table;    // undefined if an optimizer took it, or if it is not needed
  at::Tensor weights;  // undefined if it is not needed
};
/// The layouts of bag_gradients(), and of the gradient that they need, for a gradient of layout `grad`. Pre: `call.found` is set.
struct BagGradientSpecs {
  Placements needed;
  SpecPtr table, weights;
};
BagGradientSpecs specs_of_gradients(const BagLookup& call, const Spec& grad);
/// `grad`: the gradient of the result. `of_table`: whether the table's gradient is needed.
BagGradients bag_gradients(const BagLookup& call, const at::Tensor& grad, bool of_table);

}  // namespace shardwise
