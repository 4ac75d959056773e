#include "runtime/tensor/dtensor_impl.h"
#include "wrappers/distributed_embedding/feature_gradients.h"
#include "wrappers/distributed_embedding/owner_step.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>

namespace shardwise {
namespace {

/// Gathers the gradients of all samples' vectors, by feature and by slice of its table on this rank.
std::vector<std::vector<at::Tensor>> gathered_gradients(const OwnerStep& step, const std::vector<at::Tensor>& grads) {
  const TableLanes& lanes = step.layer->lanes;
  const int64_t own = lanes.own_rank();
  const std::vector<MessageRows> rows = message_rows(step);
  const MessageRows& of_self = rows[static_cast<size_t>(own)];
  const LaneTensors sent = lane_tensors(lanes, [&](size_t lane, int64_t rank) { return of_self.n_from(lane, rank); });
  const LaneTensors received =
      lane_tensors(lanes, [&](size_t lane, int64_t rank) { return rows[static_cast<size_t>(rank)].n_from(lane, own); });
  of_self.for_each([&](const MessageRows::Part& part) {
    const at::Tensor place = sent[part.slice.lane][static_cast<size_t>(part.slice.rank)].narrow(0, part.first, part.n);
    const at::Tensor& grad = grads[part.feature];
    if (!grad.defined())
      place.zero_();
    else
      place.copy_(
          grad.reshape({part.n, grad.size(-1)}).narrow(1, part.slice.columns.begin, part.slice.columns.length()));
  });
  exchange_lanes(lanes, sent, received);

  std::vector<std::vector<std::vector<at::Tensor>>> parts(step.ids.size());  // of all ranks, in rank order
  for (int64_t rank = 0; rank < lanes.n_ranks(); ++rank)
    rows[static_cast<size_t>(rank)].for_each([&](const MessageRows::Part& part) {
      if (part.slice.rank != own) return;
      auto& of_feature = parts[part.feature];
      of_feature.resize(std::max(of_feature.size(), part.place + 1));
      of_feature[part.place].push_back(
          received[part.slice.lane][static_cast<size_t>(rank)].narrow(0, part.first, part.n));
    });
  std::vector<std::vector<at::Tensor>> whole(step.ids.size());
  for (size_t f = 0; f < parts.size(); ++f)
    for (const auto& of_slice : parts[f]) whole[f].push_back(of_slice.empty() ? at::Tensor() : at::cat(of_slice));
  return whole;
}

/// The features of a table for which this rank has ids, and these ids concatenated.
struct TableIds {
  std::vector<size_t> features;
  std::vector<int64_t> n_ids;
  at::Tensor ids;

  TableIds(const OwnerStep& step, size_t table) {
    std::vector<at::Tensor> each{at::empty({0}, at::kLong)};
    for (const size_t f : step.layer->features_of[table]) {
      if (!step.ids[f]) continue;
      features.push_back(f);
      n_ids.push_back(step.ids[f]->ids.numel());
      each.push_back(step.ids[f]->ids);
    }
    ids = at::cat(each).to(step.layer->lanes.mesh->device_type());
  }
};

}  // namespace

std::vector<at::Tensor> owner_gradients(const OwnerStep& step, const std::vector<at::Tensor>& grads,
                                        const std::vector<bool>& wanted) {
  const TableLanes& lanes = step.layer->lanes;
  const auto gathered = gathered_gradients(step, grads);
  std::vector<at::Tensor> result;
  for (size_t t = 0; t < lanes.tables.size(); ++t) {
    if (!wanted[t]) {
      result.emplace_back();
      continue;
    }
    const LayerTable& table = lanes.tables[t];
    const TableIds own(step, t);
    const auto grads_of_box = [&](const Box& box) {
      if (own.features.empty()) return BoxGrads{own.ids, {at::empty({0, box.sizes[1]}, step.layer->memory.options(t))}};
      const LaneSlice* slice = table.is_replicated ? nullptr : lanes.own_slice(table, box);
      std::vector<RowGrads> each;
      for (const size_t f : own.features) {
        const size_t place = slice == nullptr ? 0 : static_cast<size_t>(slice - table.slices.data());
        const at::Tensor grad = slice == nullptr ? defined_gradient(*step.ids[f], grads[f], table.spec->sizes()[1],
                                                                    step.layer->memory.options(t))
                                                 : gathered[f][place];
        each.push_back(grads_of_feature(*step.ids[f], grad, step.chosen[f][place]));
      }
      return BoxGrads{own.ids,
                      scaled(joined(std::move(each), own.n_ids), step.layer->gradient_factor, own.ids.numel())};
    };
    std::vector<BoxGrads> boxes;
    for (const Box& box : table.spec->boxes()) boxes.push_back(grads_of_box(box));
    const SpecPtr spec = table.is_replicated ? table.spec->with_placements({Placement::partial()}) : table.spec;
    result.push_back(step.sinks[t].take(spec, std::move(boxes), /*skipped=*/-1));
  }
  return result;
}

}  // namespace shardwise
