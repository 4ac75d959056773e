// wrappers/distributed_embedding/owner_step.h: one lookup whose ids are passed to the owners of the tables, and the places of vectors in its
// messages.
#pragma once

#include "wrappers/distributed_embedding/lookup_step.h"

#include <functional>
#include <optional>
#include <vector>

namespace shardwise {

/// The state of a lookup at the owners, without the values of rows.
struct OwnerStep {
  LayerTablesPtr layer;
  int64_t number = 0;                           // the step's number among the layer's lookups, from 1
  std::vector<std::optional<FeatureIds>> ids;   // by feature; nullopt if this rank has no part of its table
  int64_t n_samples = 0;                        // of all ranks
  std::vector<int64_t> rows_per_sample;         // by feature: 1, or ids per sample if not combined
  std::vector<bool> has_rows;                   // by feature: results have a dim for these rows
  std::vector<GradientSink> sinks;              // by table
  std::vector<std::vector<at::Tensor>> chosen;  // by feature and slice of its table, for maxima
  std::vector<std::vector<at::Tensor>>
      slots;                   // likewise, until combined: slots of the ids, if this rank's slice has a cache
  std::vector<HoldPtr> holds;  // released at the end of the backward

  /// The samples of one rank.
  Interval samples_of(int64_t rank) const;

  template <class Visit>
  void for_each_tensor(const Visit& visit) {
    for (auto& each : ids)
      if (each) each->for_each_tensor(visit);
    for (auto& tensors : chosen)
      for (at::Tensor& tensor : tensors) visit(tensor);
  }
};

/// The places of the vectors of one rank's samples in the messages of each lane: ordered by sender, then feature, then slice.
class MessageRows {
 public:
  MessageRows(const OwnerStep& step, int64_t rank);

  int64_t n_from(size_t lane, int64_t sender) const { return n_rows_[lane][static_cast<size_t>(sender)]; }

  /// The rows [first, first + n) of a sender's message belong to slice number `place` of the table of feature `feature`.
  struct Part {
    size_t feature;
    size_t place;
    const LaneSlice& slice;
    int64_t first;
    int64_t n;
  };
  void for_each(const std::function<void(const Part&)>& use) const;

 private:
  const OwnerStep* step_;
  int64_t n_samples_;
  std::vector<std::vector<int64_t>> n_rows_;  // by lane and sender
};

/// MessageRows of every rank.
std::vector<MessageRows> message_rows(const OwnerStep& step);

/// Tensors of messages, by lane and rank.
using LaneTensors = std::vector<std::vector<at::Tensor>>;
/// Uninitialised tensors [n_rows(lane, rank), width of the lane].
LaneTensors lane_tensors(const TableLanes& lanes, const std::function<int64_t(size_t, int64_t)>& n_rows);
/// One message per pair and lane: `sent[lane][rank]` to each rank, `received[lane][rank]` from it. Collective.
void exchange_lanes(const TableLanes& lanes, const LaneTensors& sent, const LaneTensors& received);

/// The gradients of tables from the gradients of results. `grads`: by feature; an undefined gradient is zero. `wanted`: by table; gradients that are
/// not wanted are neither computed nor passed to an optimizer. Collective: one exchange.
std::vector<at::Tensor> owner_gradients(const OwnerStep& step, const std::vector<at::Tensor>& grads,
                                        const std::vector<bool>& wanted);

}  // namespace shardwise
