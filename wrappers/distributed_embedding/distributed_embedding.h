// wrappers/distributed_embedding/distributed_embedding.h: many embedding tables on many ranks behind one layer.
//
//   DistributedEmbedding layer(configs, plan.tables, mesh, features);
//   std::vector<at::Tensor> tables = layer.tables();                  // DTensors; initialise them, make them parameters
//   auto vectors = layer.start(inputs, tables)->wait();               // one exchange of ids, one of rows
//   loss(vectors).backward();                                         // one exchange of gradients
//
// Every rank gives the ids of its own samples and gets their vectors, as plain tensors. Tables are DTensors, in blocks of memory that
// the layer owns (table_lanes.h). The exchange of ids costs a second message where a pair of ranks asks for many more rows than the step
// before; other than that their number does not depend on that of tables or features.
#pragma once

#include "wrappers/distributed_embedding/owner_lookup.h"

#include <exception>
#include <optional>

namespace shardwise {

class DistributedEmbedding {
 public:
  struct Options {
    /// Gradients of tables are those of the mean of all ranks' losses, else of their sum.
    bool mean_gradients = true;
    /// Gradients that no fused optimizer takes are sparse.
    bool is_sparse = false;
    /// Each rank gives the ids of its own samples; else those of all samples for the tables that it has columns of (owner_lookup.h).
    bool dp_input = true;
    /// Results are one tensor, [samples, columns of all features in their order].
    bool concatenates = false;
  };
  using Inputs = std::vector<std::optional<FeatureInput>>;

  /// `features`: the inputs, each of one table; a table may have several. Throws: c10::ValueError for a plan that does not fit the mesh or
  /// the tables, for a feature of no table and a table without one. Sends nothing, unless tables lie in files (`storages`): then what is
  /// wrong with any rank's is thrown on all.
  DistributedEmbedding(const std::vector<TableConfig>& configs, const std::vector<TablePlan>& plans,
                       const MeshPtr& mesh, std::vector<Feature> features, Options options,
                       const TableStorages& storages = {});

  const TableLanes& lanes() const { return layer_->lanes; }
  const std::vector<Feature>& features() const { return layer_->features; }
  /// New tensors of the layer's memory, uninitialised at first.
  std::vector<at::Tensor> tables() const { return layer_->memory.tables(); }

  /// This rank's parts of a table, of the layer's memory. Of a table in files: up to date, and lookups will see what is written to them before
  /// the next one.
  std::vector<TablePart> pieces(size_t table) const;
  /// Of these parts.
  int64_t bytes_here(size_t table) const;
  /// Brings DTensors of tables in files up to date with what backwards have changed since. No messages.
  void flush() const { layer_->memory.write_back(); }
  /// Of this rank's caches of a table, all together, since the start; nothing for a table in memory.
  std::optional<HotRows::Counts> cache_counts(size_t table) const;
  /// See whole_tables.h.
  at::Tensor gathered_rows(size_t table, Interval rows, std::optional<int64_t> root) const;

  /// What lookups asked for.
  struct Traffic {
    int64_t n_ids = 0;   // of this rank
    int64_t n_rows = 0;  // that they name, each once
    int64_t bytes = 0;   // of those rows that come from other ranks, forward; as many go back as gradients
  };
  /// By table: of the lookup that was started last.
  const std::vector<Traffic>& traffic() const { return traffic_; }
  /// Memory of rows under way, kept for the next step.
  int64_t buffer_bytes() const { return layer_->buffers.n_bytes(); }

  /// A lookup of which the ids are on their way.
  class Lookup {
   public:
    /// Sends for the rows, whose values are those of now. Collective; the next start() does it, or wait(), where this has not.
    void fetch();
    /// The vectors by feature, or the one tensor of all. Collective where fetch() was not called.
    std::vector<at::Tensor> wait();

   private:
    friend class DistributedEmbedding;
    /// fetch(), which throws what this keeps.
    void try_fetch() noexcept;

    std::shared_ptr<RequestExchange> exchange_;  // outlives the step
    RequestExchange::Step ids_;
    LookupStep step_;
    std::shared_ptr<LookupCounts> counts_;
    std::exception_ptr error_;         // of the fetch
    std::vector<at::Tensor> tables_;   // as they were given
    std::vector<at::Tensor> weights_;  // of the step's weighted features
    std::optional<RowsUnderWay> rows_;
    std::optional<OwnerStep> at_owners_;  // in place of all that
  };

  /// Sends ids to the ranks that own their rows, and before that for the rows of the lookup before, if nobody has: so the order of messages
  /// does not depend on who waits for a lookup, or drops it. `inputs`: by feature; none may be missing unless they come by table. `tables`: the
  /// layer's own, or parameters made of them, whose gradients go where they go now. `error`: what is wrong with this rank's inputs already.
  /// Collective. Throws: at fetch(), on all ranks, what is wrong with the first rank's inputs or tables, and what ranks do not share (StepFacts).
  std::shared_ptr<Lookup> start(const Inputs& inputs, const std::vector<at::Tensor>& tables, RankError error = {});

 private:
  void note_traffic(const LookupStep& step);

  LayerTablesPtr layer_;
  bool dp_input_;
  std::shared_ptr<RequestExchange> exchange_;
  std::shared_ptr<LookupCounts> counts_ = std::make_shared<LookupCounts>();
  std::shared_ptr<Lookup> started_;  // last
  std::vector<Traffic> traffic_;
};

}  // namespace shardwise
