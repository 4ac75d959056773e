// wrappers/distributed_embedding/distributed_embedding.h: many embedding tables on many ranks behind one layer.
//
//   DistributedEmbedding layer(configs, plan.tables, mesh, features);
//   std::vector<at::Tensor> tables = layer.tables();                  // DTensors; initialise them, make them parameters
//   auto vectors = layer.start(inputs, tables)->wait();               // one exchange of ids, one of rows
//   loss(vectors).backward();                                         // one exchange of gradients
//
// Every rank passes the ids of its own samples and gets their vectors, as plain tensors. Tables are DTensors, in blocks of memory that the layer owns
// (table_lanes.h). The number of messages does not depend on the numbers of tables and features. If a rank requests many more rows from another than
// in the step before, the exchange of ids takes a second message between the two.
#pragma once

#include "wrappers/distributed_embedding/owner_lookup.h"

#include <exception>
#include <optional>

namespace shardwise {

class DistributedEmbedding {
 public:
  struct Options {
    /// If true, gradients of tables are those of the mean of all ranks' losses, else of their sum.
    bool mean_gradients = true;
    /// Gradients that no fused optimizer takes are sparse.
    bool is_sparse = false;
    /// If true, each rank passes the ids of its own samples; else the ids of all samples, for the tables that it has columns of (owner_lookup.h).
    bool dp_input = true;
    /// Results are one tensor, [samples, columns of all features in their order].
    bool concatenates = false;
  };
  using Inputs = std::vector<std::optional<FeatureInput>>;

  /// `features`: the inputs, each of one table; a table may have several. Throws: c10::ValueError on a rank outside the mesh, for a plan that does
  /// not fit the mesh or the tables, for a feature without a table and a table without a feature. Sends nothing, unless tables are stored in files
  /// (`storages`): then an error of any rank is thrown on all ranks.
  DistributedEmbedding(const std::vector<TableConfig>& configs, const std::vector<TablePlan>& plans,
                       const MeshPtr& mesh, std::vector<Feature> features, Options options,
                       const TableStorages& storages = {});

  const TableLanes& lanes() const { return layer_->lanes; }
  const std::vector<Feature>& features() const { return layer_->features; }
  /// New tensors over the layer's memory, which is uninitialised at first.
  std::vector<at::Tensor> tables() const { return layer_->memory.tables(); }

  /// This rank's parts of a table, in the layer's memory. For a table in files they are up to date, and the next lookup sees writes to them.
  std::vector<TablePart> pieces(size_t table) const;
  /// Bytes of these parts.
  int64_t bytes_here(size_t table) const;
  /// Brings DTensors of tables in files up to date with the updates of backwards. No messages.
  void flush() const { layer_->memory.write_back(); }
  /// The sum of the counts of this rank's caches of a table, since construction; nullopt for a table in memory.
  std::optional<HotRows::Counts> cache_counts(size_t table) const;
  /// See whole_tables.h.
  at::Tensor gathered_rows(size_t table, Interval rows, std::optional<int64_t> root) const;

  /// The size of a lookup.
  struct Traffic {
    int64_t n_ids = 0;   // ids of this rank
    int64_t n_rows = 0;  // distinct rows that the ids name
    int64_t bytes = 0;   // of rows from other ranks in the forward; gradients are as many bytes
  };
  /// The traffic of the lookup that was started last, by table.
  const std::vector<Traffic>& traffic() const { return traffic_; }
  /// Memory of buffers for rows in messages, kept for the next step.
  int64_t buffer_bytes() const { return layer_->buffers.n_bytes(); }

  /// A started lookup, whose ids are being sent.
  class Lookup {
   public:
    /// Requests the rows, with their current values. Collective. If fetch() is not called, wait() or the next start() calls it.
    void fetch();
    /// The vectors by feature, or the one tensor of all features. Collective if fetch() was not called.
    std::vector<at::Tensor> wait();

   private:
    friend class DistributedEmbedding;
    /// Does the work of fetch(). Keeps an exception in error_, for fetch() to throw.
    void try_fetch() noexcept;

    std::shared_ptr<RequestExchange> exchange_;  // outlives the step
    RequestExchange::Step ids_;
    LookupStep step_;
    std::shared_ptr<LookupCounts> counts_;
    std::exception_ptr error_;         // of try_fetch()
    std::vector<at::Tensor> tables_;   // as passed to start()
    std::vector<at::Tensor> weights_;  // of the step's weighted features
    std::optional<RowsUnderWay> rows_;
    std::optional<OwnerStep> at_owners_;  // without dp_input, in place of the members above
  };

  /// Sends ids to the ranks that own their rows. If the previous lookup was not fetched yet, fetches it first, so that the order of messages does not
  /// depend on which lookups a rank waits for or drops. `inputs`: by feature; none may be missing if dp_input. `tables`: tables(), or parameters made
  /// of them; the destination of their gradients is fixed now. `error`: an error in this rank's inputs found before.
  /// Collective. Throws: at fetch(), on all ranks, the error of the first rank with wrong inputs or tables, or an error for facts that differ between
  /// ranks (StepFacts).
  std::shared_ptr<Lookup> start(const Inputs& inputs, const std::vector<at::Tensor>& tables, RankError error = {});

 private:
  void note_traffic(const LookupStep& step);

  LayerTablesPtr layer_;
  bool dp_input_;
  std::shared_ptr<RequestExchange> exchange_;
  std::shared_ptr<LookupCounts> counts_ = std::make_shared<LookupCounts>();
  std::shared_ptr<Lookup> started_;  // the last started lookup
  std::vector<Traffic> traffic_;
};

}  // namespace shardwise
