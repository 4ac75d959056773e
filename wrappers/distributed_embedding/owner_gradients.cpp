#include "runtime/redistribute/packed_messages.h"
#include "runtime/tensor/dtensor_impl.h"
#include "wrappers/distributed_embedding/feature_gradients.h"
#include "wrappers/distributed_embedding/owner_step.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

namespace shardwise {
namespace {

/// Gathers the gradients of all samples' vectors, by feature and by slice of its table on this rank.
std::vector<std::vector<at::Tensor>> gathered_gradients(const OwnerStep& step, const std::vector<at::Tensor>& grads) {
  const TableLanes& lanes = step.layer->lanes;
  const Group& group = *lanes.mesh->group();
  const int64_t own = lanes.own_rank();
  PackedMessages messages(c10::Device(lanes.mesh->device_type()));
  std::vector<std::vector<at::Tensor>> gathered(step.ids.size());
  for (size_t f = 0; f < gathered.size(); ++f) {
    const LayerTable& table = lanes.tables[step.layer->features[f].table];
    if (table.is_replicated) continue;
    const auto options = step.layer->memory.options(step.layer->features[f].table);
    const std::vector<int64_t> sizes{step.rows_of(own, f).length(), table.spec->sizes()[1]};
    const at::Tensor grad = grads[f].defined() ? grads[f].reshape(sizes) : at::zeros(sizes, options);
    for (const LaneSlice& slice : table.slices) {
      const at::Tensor columns = grad.narrow(1, slice.columns.begin, slice.columns.length());
      at::Tensor& whole = gathered[f].emplace_back();
      if (slice.rank != own) {
        messages.send(group.ranks[static_cast<size_t>(slice.rank)], columns);
        continue;
      }
      whole = at::empty({step.n_samples * step.rows_per_sample[f], slice.columns.length()}, options);
      for (int64_t rank = 0; rank < lanes.n_ranks(); ++rank) {
        const at::Tensor place = whole.narrow(0, step.rows_of(rank, f).begin, step.rows_of(rank, f).length());
        if (rank == own)
          place.copy_(columns);
        else
          messages.receive(group.ranks[static_cast<size_t>(rank)], place);
      }
    }
  }
  messages.start(group);
  messages.finish();
  return gathered;
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
