// wrappers/distributed_embedding/lookup_step.h: one lookup of all features in all tables, and its backward.
//
//   each rank                                             the owners of the rows
//   ids of all features -> rows of tables, each once  ->  one message per pair: which rows        (request_exchange.h)
//   arrivals, pooled per sample                       <-  one message per pair and lane: the rows
//   backward: sums per row                            ->  one message per pair and lane: their gradients, summed by row and applied
//
// A rank that shares memory with another one (peer_memory.h) writes the rows and the gradients of all lanes there, and sends one notice per
// pair in place of their messages.
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

/// Settings and memory that all steps of a layer share.
struct LayerTables {
  TableLanes lanes;
  std::vector<Feature> features;
  TableMemory memory;
  mutable RowBuffers buffers;
  mutable std::optional<PeerMemory> peers;  // found by the first lookup
  /// Gradients are multiplied by this factor. With 1 / ranks they are those of the mean of the ranks' losses, as in data parallelism.
  double gradient_factor = 1;
  int64_t number = 0;         // the layer's number among the layers over the mesh
  bool is_sparse = false;     // of gradients that no fused optimizer takes
  bool concatenates = false;  // results: one tensor [samples, columns of all features]

  std::vector<std::vector<size_t>> features_of;  // by table
  std::vector<Interval> columns;                 // of each feature in a concatenated result

  /// "ids of lookup 3 of layer 0", for the order check.
  std::string words(const char* what, int64_t lookup) const {
    return fmt::format("{} of lookup {} of layer {}", what, lookup, number);
  }
  /// Finds the ranks that share memory with this one, if that was not done before. Collective.
  void find_peers() const;

  /// Rows of a lane that this rank and another one pass to each other.
  struct PairRows {
    at::Tensor received;    // the place of the other rank's rows in this rank's memory
    bool is_known = false;  // the other rank knows that place
    int64_t n_sent = 0;     // rows for the other rank
    PlaceThere there;       // the place for them, if the other rank has named one
  };
  /// The rows of all lanes and ranks. pass_rows() calls these functions before it returns.
  struct AllRows {
    std::function<PairRows(size_t lane, int64_t rank)> of;
    std::function<void(const at::Tensor& place, size_t lane, int64_t rank)> write;  // the rows of this rank for `rank`
    std::function<at::Tensor(int64_t rank)> notice;
  };
  /// Starts to pass rows between each two ranks, with other messages: a message per lane or, for rows that have a known place in shared memory, one
  /// notice for all lanes. `notices`: by rank, those that come; undefined where none comes. Collective.
  std::shared_ptr<Messages> pass_rows(const AllRows& rows, std::vector<Message> sends, std::vector<Message> receives,
                                      std::vector<at::Tensor>& notices) const;
  /// The destinations of the gradients of `parameters`, the tables. Throws: as GradientSink::check_cached().
  std::vector<GradientSink> sinks_of(const std::vector<at::Tensor>& parameters) const;

  /// Pre: every feature's table exists.
  LayerTables(TableLanes of, std::vector<Feature> for_features);
  C10_DISABLE_COPY_AND_ASSIGN(LayerTables);
};
using LayerTablesPtr = std::shared_ptr<const LayerTables>;

/// Where the gradients of a step's rows go in shared memory. Known from the forward on, and used by the first backward.
struct GradientPlaces {
  std::vector<at::Tensor> arrived;  // by lane: of this rank's rows, in the order of IncomingRows; empty: no places
  std::vector<at::Tensor> there;    // by rank: for each lane a block and a first row, of the rows requested there
};

/// The state of a step, without the values of rows.
struct LookupStep {
  LayerTablesPtr layer;
  int64_t number = 0;           // the step's number among the layer's lookups, from 1
  std::vector<FeatureIds> ids;  // by feature
  RowRequests requests;
  IncomingRows incoming;
  std::vector<GradientSink> sinks;  // by table
  std::vector<HoldPtr> holds;       // released at the end of the backward
  // Saved by the forward for the backward.
  std::vector<at::Tensor> chosen;  // by feature, for maxima
  bool trains_tables = false;      // some table requires a gradient; equal on all ranks
  std::vector<size_t> weighted;    // features whose weights are differentiated
  // By lane: until the rows are requested and, if there are weighted features, from the forward on. `replicated`: the memory of replicated tables, by
  // table, likewise.
  std::vector<at::Tensor> arrivals, replicated;
  std::shared_ptr<GradientPlaces> gradient_places = std::make_shared<GradientPlaces>();

  template <class Visit>
  void for_each_tensor(const Visit& visit) {
    for (FeatureIds& each : ids) each.for_each_tensor(visit);
    requests.for_each_tensor(visit);
    incoming.for_each_tensor(visit);
    for (auto* tensors : {&chosen, &arrivals, &replicated})
      for (at::Tensor& tensor : *tensors) visit(tensor);
  }
};

/// Throws: c10::NotImplementedError if the gradients of a lookup would be differentiated again.
void check_first_order(const std::vector<at::Tensor>& grads);

/// By table: true if this backward must compute its gradient. Pre: the layer's tables are the function's first inputs.
std::vector<bool> wanted_tables(const LayerTables& layer, torch::autograd::AutogradContext* ctx);

/// Rows of some columns of a feature's table.
struct PartRows {
  at::Tensor rows;     // [n, columns]
  at::Tensor numbers;  // the row of each of the feature's ids in `rows`
  Interval columns;
};
/// The rows of a feature, by part of its table's columns. `arrivals`: by lane; `replicated`: the table's memory, if it is replicated.
std::vector<PartRows> rows_of_feature(const LookupStep& step, size_t feature, const std::vector<at::Tensor>& arrivals,
                                      const at::Tensor& replicated);

/// The messages with the rows of each lane that this rank requested. They carry the current values of the owners' blocks.
class RowsUnderWay {
 public:
  /// Takes the step's arrivals. `tables`: as for combine(). Collective.
  RowsUnderWay(LookupStep& step, const std::vector<at::Tensor>& tables);
  /// Returns the rows by lane. Throws: c10::ValueError, on all ranks, if rows did not fit into the cache of a table in files.
  std::vector<at::Tensor> wait();
  std::vector<HoldPtr> take_holds() { return held_.take_holds(); }

 private:
  HeldRows held_;
  std::vector<at::Tensor> arrivals_;
  std::shared_ptr<GradientPlaces> gradient_places_;
  std::vector<at::Tensor> notices_;  // by rank: the places of gradients there
  std::shared_ptr<Messages> messages_;
};

/// The result of each feature, [samples, columns] or, without a combiner, [ids..., columns]; or the concatenated result of all. Differentiable by
/// `tables` (the layer's tables or parameters made of them) and by `weights` (of the step's `weighted` features, in order). No messages; its backward
/// is collective.
std::vector<at::Tensor> combine(LookupStep step, RowsUnderWay rows, const std::vector<at::Tensor>& tables,
                                const std::vector<at::Tensor>& weights);

}  // namespace shardwise
