// wrappers/distributed_embedding/lookup_step.h: one lookup of all features in all tables, and its backward.
//
//   each rank                                             the owners of the rows
//   ids of all features -> rows of tables, each once  ->  one message per pair: which rows        (request_exchange.h)
//   arrivals, pooled per sample                       <-  one message per pair and lane: the rows
//   backward: sums per row                            ->  one message per pair and lane: their gradients, summed by row and applied
#pragma once

#include "ops/embedding/gradient_sink.h"
#include "wrappers/distributed_embedding/held_rows.h"
#include "wrappers/distributed_embedding/request_exchange.h"
#include "wrappers/distributed_embedding/row_buffers.h"
#include "wrappers/distributed_embedding/table_memory.h"

#include <fmt/format.h>

#include <torch/csrc/autograd/custom_function.h>

#include <memory>
#include <string>
#include <vector>

namespace shardwise {

/// What the steps of a layer share.
struct LayerTables {
  TableLanes lanes;
  std::vector<Feature> features;
  TableMemory memory;
  mutable RowBuffers buffers;
  /// Gradients are multiplied by it. 1 / ranks: they are those of the mean of the ranks' losses, as data parallelism has it.
  double gradient_factor = 1;
  int64_t number = 0;         // among the layers over the mesh
  bool is_sparse = false;     // gradients that no fused optimizer takes
  bool concatenates = false;  // results: one tensor [samples, columns of all features]

  std::vector<std::vector<size_t>> features_of;  // by table
  std::vector<Interval> columns;                 // of each feature in a concatenated result

  /// "ids of lookup 3 of layer 0", for the order check.
  std::string words(const char* what, int64_t lookup) const {
    return fmt::format("{} of lookup {} of layer {}", what, lookup, number);
  }
  /// Says where the gradients of `parameters`, the tables, go. Throws: as GradientSink::check_cached().
  std::vector<GradientSink> sinks_of(const std::vector<at::Tensor>& parameters) const;

  /// Pre: features name tables that there are.
  LayerTables(TableLanes of, std::vector<Feature> for_features);
  LayerTables(const LayerTables&) = delete;
  LayerTables& operator=(const LayerTables&) = delete;
};
using LayerTablesPtr = std::shared_ptr<const LayerTables>;

/// What a step knows besides the values of rows.
struct LookupStep {
  LayerTablesPtr layer;
  int64_t number = 0;           // among the layer's lookups, from 1
  std::vector<FeatureIds> ids;  // by feature
  RowRequests requests;
  IncomingRows incoming;
  std::vector<GradientSink> sinks;  // by table
  std::vector<HoldPtr> holds;       // until the backward is over
  // Of the forward, for the backward.
  std::vector<at::Tensor> chosen;  // by feature: of maxima
  bool trains_tables = false;      // some table wants a gradient: the same on all ranks
  std::vector<size_t> weighted;    // features whose weights are differentiated
  // Kept where there are any: by lane, and by table the memory of those that are replicated.
  std::vector<at::Tensor> arrivals, replicated;

  template <class Visit>
  void for_each_tensor(const Visit& visit) {
    for (FeatureIds& each : ids) each.for_each_tensor(visit);
    requests.for_each_tensor(visit);
    incoming.for_each_tensor(visit);
    for (auto* tensors : {&chosen, &arrivals, &replicated})
      for (at::Tensor& tensor : *tensors) visit(tensor);
  }
};

/// Throws: c10::NotImplementedError where the gradients of a lookup would be differentiated again.
void check_first_order(const std::vector<at::Tensor>& grads);

/// By table: whether this backward is asked for its gradient. Pre: the layer's tables are the function's first inputs.
std::vector<bool> wanted_tables(const LayerTables& layer, torch::autograd::AutogradContext* ctx);

/// Rows of some columns of a feature's table.
struct PartRows {
  at::Tensor rows;     // [n, columns]
  at::Tensor numbers;  // of the feature's ids in `rows`
  Interval columns;
};
/// Those of all columns. `arrivals`: by lane; `replicated`: the table's memory where it is replicated.
std::vector<PartRows> rows_of_feature(const LookupStep& step, size_t feature, const std::vector<at::Tensor>& arrivals,
                                      const at::Tensor& replicated);

/// The rows of each lane that this rank asks for, on their way: what their owners' blocks hold now.
class RowsUnderWay {
 public:
  /// Collective.
  explicit RowsUnderWay(const LookupStep& step);
  /// By lane. Throws: c10::ValueError, on all ranks, where rows did not fit into the cache of a table in files.
  std::vector<at::Tensor> wait();
  std::vector<HoldPtr> take_holds() { return held_.take_holds(); }

 private:
  HeldRows held_;
  std::vector<at::Tensor> arrivals_;
  std::shared_ptr<Messages> messages_;
};

/// The result of each feature, [samples, columns] or, not combined, [ids..., columns], or the one of all; differentiable by `tables` (the layer's, perhaps
/// parameters) and by `weights` (those of the step's `weighted` features, in their order). No messages; its backward is collective.
std::vector<at::Tensor> combine(LookupStep step, RowsUnderWay rows, const std::vector<at::Tensor>& tables,
                                const std::vector<at::Tensor>& weights);

}  // namespace shardwise
