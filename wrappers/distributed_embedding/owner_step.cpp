#include "wrappers/distributed_embedding/owner_step.h"

#include <ATen/ops/empty.h>

#include <algorithm>

namespace shardwise {

Interval OwnerStep::samples_of(int64_t rank) const {
  const int64_t n_ranks = layer->lanes.n_ranks(), size = n_samples / n_ranks, rest = n_samples % n_ranks;
  const int64_t begin = rank * size + std::min(rank, rest);
  return {begin, begin + size + (rank < rest ? 1 : 0)};
}

MessageRows::MessageRows(const OwnerStep& step, int64_t rank)
    : step_(&step), n_samples_(step.samples_of(rank).length()) {
  const TableLanes& lanes = step.layer->lanes;
  n_rows_.assign(lanes.lanes.size(), std::vector<int64_t>(static_cast<size_t>(lanes.n_ranks())));
  for (size_t f = 0; f < step.ids.size(); ++f)
    for (const LaneSlice& slice : lanes.tables[step.layer->features[f].table].slices)
      n_rows_[slice.lane][static_cast<size_t>(slice.rank)] += n_samples_ * step.rows_per_sample[f];
}

void MessageRows::for_each(const std::function<void(const Part&)>& use) const {
  const TableLanes& lanes = step_->layer->lanes;
  std::vector<std::vector<int64_t>> next(lanes.lanes.size(),
                                         std::vector<int64_t>(static_cast<size_t>(lanes.n_ranks())));
  for (size_t f = 0; f < step_->ids.size(); ++f) {
    const auto& slices = lanes.tables[step_->layer->features[f].table].slices;
    for (size_t place = 0; place < slices.size(); ++place) {
      int64_t& first = next[slices[place].lane][static_cast<size_t>(slices[place].rank)];
      const int64_t n = n_samples_ * step_->rows_per_sample[f];
      use({f, place, slices[place], first, n});
      first += n;
    }
  }
}

std::vector<MessageRows> message_rows(const OwnerStep& step) {
  std::vector<MessageRows> rows;
  for (int64_t rank = 0; rank < step.layer->lanes.n_ranks(); ++rank) rows.emplace_back(step, rank);
  return rows;
}

LaneTensors lane_tensors(const TableLanes& lanes, const std::function<int64_t(size_t, int64_t)>& n_rows) {
  LaneTensors tensors(lanes.lanes.size());
  for (size_t lane = 0; lane < tensors.size(); ++lane)
    for (int64_t rank = 0; rank < lanes.n_ranks(); ++rank)
      tensors[lane].push_back(
          at::empty({n_rows(lane, rank), lanes.lanes[lane].width},
                    at::TensorOptions().dtype(lanes.lanes[lane].dtype).device(lanes.mesh->device_type())));
  return tensors;
}

void exchange_lanes(const TableLanes& lanes, const LaneTensors& sent, const LaneTensors& received) {
  const Group& group = *lanes.mesh->group();
  std::vector<Message> sends, receives;
  for (size_t lane = 0; lane < lanes.lanes.size(); ++lane)
    for (int64_t rank = 0; rank < lanes.n_ranks(); ++rank) {
      const auto place = static_cast<size_t>(rank);
      if (rank == lanes.own_rank()) continue;
      if (sent[lane][place].numel() > 0) sends.push_back({group.ranks[place], sent[lane][place]});
      if (received[lane][place].numel() > 0) receives.push_back({group.ranks[place], received[lane][place]});
    }
  const auto messages = exchange(group, c10::Device(lanes.mesh->device_type()), std::move(sends), std::move(receives));
  const auto own = static_cast<size_t>(lanes.own_rank());
  for (size_t lane = 0; lane < lanes.lanes.size(); ++lane) received[lane][own].copy_(sent[lane][own]);
  messages->wait();
}

}  // namespace shardwise
