// wrappers/distributed_embedding/owner_step.h: one lookup whose ids are with the tables, and where vectors lie in its messages.
#pragma once

#include "wrappers/distributed_embedding/lookup_step.h"

#include <functional>
#include <optional>
#include <vector>

namespace shardwise {

/// What a lookup at the owners knows besides the values of rows.
struct OwnerStep {
  LayerTablesPtr layer;
  int64_t number = 0;                           // among the layer's lookups, from 1
  std::vector<std::optional<FeatureIds>> ids;   // by feature; none where this rank has no part of its table
  int64_t n_samples = 0;                        // of all ranks
  std::vector<int64_t> rows_per_sample;         // by feature: 1, or of ids that are not combined their number
  std::vector<bool> has_rows;                   // by feature: results have a dim for these rows
  std::vector<GradientSink> sinks;              // by table
  std::vector<std::vector<at::Tensor>> chosen;  // by feature and slice of its table: of maxima
  std::vector<std::vector<at::Tensor>>
      slots;                   // likewise, until they are combined: of the ids, where this rank's slice has a cache
  std::vector<HoldPtr> holds;  // until the backward is over

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

/// Where the vectors of one rank's samples lie in the messages of each lane: by sender, then feature, then slice.
class MessageRows {
 public:
  MessageRows(const OwnerStep& step, int64_t rank);

  int64_t n_from(size_t lane, int64_t sender) const { return n_rows_[lane][static_cast<size_t>(sender)]; }

  /// The rows [first, first + n), counted from the first of the sender, are those of slice number `place` of feature `feature`'s table.
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

/// Of every rank.
std::vector<MessageRows> message_rows(const OwnerStep& step);

/// Tensors of messages, by lane and rank.
using LaneTensors = std::vector<std::vector<at::Tensor>>;
/// [rows, width of the lane], uninitialised; `n_rows(lane, rank)` says how many.
LaneTensors lane_tensors(const TableLanes& lanes, const std::function<int64_t(size_t, int64_t)>& n_rows);
/// One message per pair and lane: `sent[lane][rank]` to each rank, `received[lane][rank]` from it. Collective.
void exchange_lanes(const TableLanes& lanes, const LaneTensors& sent, const LaneTensors& received);

/// The gradients of tables from those of results, by feature; undefined ones are zeros. `wanted`: by table; what is not wanted is neither
/// computed nor given to an optimizer. Collective: one exchange.
std::vector<at::Tensor> owner_gradients(const OwnerStep& step, const std::vector<at::Tensor>& grads,
                                        const std::vector<bool>& wanted);

}  // namespace shardwise
