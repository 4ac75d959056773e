// wrappers/distributed_embedding/owner_step.h: one lookup whose ids are passed to the owners of the tables.
#pragma once

#include "wrappers/distributed_embedding/lookup_step.h"

#include <algorithm>
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
  Interval samples_of(int64_t rank) const {
    const int64_t n_ranks = layer->lanes.n_ranks(), size = n_samples / n_ranks, rest = n_samples % n_ranks;
    const int64_t begin = rank * size + std::min(rank, rest);
    return {begin, begin + size + (rank < rest ? 1 : 0)};
  }
  /// The vectors of these samples among those of a feature.
  Interval rows_of(int64_t rank, size_t feature) const {
    const auto [begin, end] = samples_of(rank);
    return {begin * rows_per_sample[feature], end * rows_per_sample[feature]};
  }

  template <class Visit>
  void for_each_tensor(const Visit& visit) {
    for (auto& each : ids)
      if (each) each->for_each_tensor(visit);
    for (auto& tensors : chosen)
      for (at::Tensor& tensor : tensors) visit(tensor);
  }
};

/// The gradients of tables from the gradients of results. `grads`: by feature; an undefined gradient is zero. `wanted`: by table; gradients that are
/// not wanted are neither computed nor passed to an optimizer. Collective: one exchange.
std::vector<at::Tensor> owner_gradients(const OwnerStep& step, const std::vector<at::Tensor>& grads,
                                        const std::vector<bool>& wanted);

}  // namespace shardwise
