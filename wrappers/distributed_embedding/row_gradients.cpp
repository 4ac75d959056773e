#include "wrappers/distributed_embedding/row_gradients.h"

#include "runtime/comm/memory_view.h"
#include "wrappers/distributed_embedding/feature_gradients.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

#include <algorithm>

namespace shardwise {
namespace {

using kernels::Pooling;

/// Computes the gradients of a step table by table, so that collective calls have the same order on all ranks.
class Backward {
 public:
  Backward(const LookupStep& step, const std::vector<at::Tensor>& grads, const std::vector<bool>& wanted)
      : step_(step), lanes_(step.layer->lanes), wanted_(wanted) {
    for (size_t f = 0; f < grads.size(); ++f) of_features_.push_back(grad_of(f, grads[f]));
  }

  std::vector<at::Tensor> tables() {
    send_sums();
    update_lanes();
    std::vector<TableGrads> replicated;
    std::vector<TableGrads*> completed;
    for (size_t t = 0; t < lanes_.tables.size(); ++t) replicated.push_back(replicated_grads(t));
    for (size_t t = 0; t < lanes_.tables.size(); ++t)
      if (replicated[t].spec && step_.sinks[t].is_complete()) completed.push_back(&replicated[t]);
    complete(completed, /*skipped=*/-1);
    std::vector<at::Tensor> result;
    for (size_t t = 0; t < lanes_.tables.size(); ++t) {
      TableGrads& own = replicated[t];
      const bool is_sharded = wanted_[t] && !lanes_.tables[t].is_replicated;
      result.push_back(own.spec     ? step_.sinks[t].take(own.spec, std::move(own.boxes), /*skipped=*/-1)
                       : is_sharded ? sharded(t)
                                    : at::Tensor());
    }
    return result;
  }

  /// The gradient of a feature's weights: per id the dot product of its row and its gradient.
  at::Tensor weights(size_t f) const {
    const FeatureIds& feature = step_.ids[f];
    const RowGrads& grads = of_features_[f];
    at::Tensor sum;
    for (const auto& [rows, numbers, columns] :
         rows_of_feature(step_, f, step_.arrivals, step_.replicated[step_.layer->features[f].table])) {
      const at::Tensor own =
          weights_grad(rows, 0, feature.bags(numbers), grads.columns(columns.begin, columns.length()));
      sum = sum.defined() ? sum.add_(own) : own;
    }
    if (*feature.pooling != Pooling::kMean) return sum;
    const at::Tensor ends =
        at::cat({feature.offsets.slice(0, 1), at::full({1}, sum.numel(), feature.offsets.options())});
    const at::Tensor lengths = ends.sub(feature.offsets).to(sum.scalar_type());
    return sum.div_(lengths.index_select(0, grads.row_of));
  }

 private:
  RowGrads grad_of(size_t f, const at::Tensor& grad) const {
    const FeatureIds& feature = step_.ids[f];
    const size_t t = step_.layer->features[f].table;
    return grads_of_feature(
        feature, defined_gradient(feature, grad, lanes_.tables[t].spec->sizes()[1], step_.layer->memory.options(t)),
        step_.chosen[f]);
  }

  at::TensorOptions options(at::ScalarType dtype) const {
    return at::TensorOptions().dtype(dtype).device(lanes_.mesh->device_type());
  }

  RowGrads of_table(const std::vector<size_t>& features) const {
    std::vector<RowGrads> parts;
    std::vector<int64_t> n_ids;
    for (const size_t f : features) {
      parts.push_back(of_features_[f]);
      n_ids.push_back(step_.ids[f].ids.numel());
    }
    return joined(std::move(parts), n_ids);
  }

  /// Sums the gradients of each row that this rank requested, and sends the sums to the owner.
  void send_sums() {
    const GradientPlaces places =
        std::exchange(*step_.gradient_places, {});  // a second backward must not write there again
    arrived_ = places.arrived;
    for (size_t lane = arrived_.size(); lane < lanes_.lanes.size(); ++lane)
      arrived_.push_back(step_.layer->buffers.take(step_.incoming.rows[lane].numel(), lanes_.lanes[lane].width,
                                                   options(lanes_.lanes[lane].dtype)));
    for (const TableRequests& table : step_.requests.tables()) of_tables_.push_back(of_table(table.features));
    const auto pair = [&](size_t lane, int64_t rank) {
      const auto at_rank = static_cast<size_t>(rank);
      LayerTables::PairRows rows{own_place(lane, rank), !places.arrived.empty(), step_.requests.n_from(lane, rank), {}};
      if (at_rank >= places.there.size() || !places.there[at_rank].defined()) return rows;
      const auto* words = places.there[at_rank].const_data_ptr<int64_t>() + 2 * lane;
      rows.there = {words[0], words[1]};
      return rows;
    };
    const auto write = [this](const at::Tensor& place, size_t lane, int64_t rank) { sum_into(place, lane, rank); };
    const auto notice = [](int64_t) { return at::empty({1}, at::kByte); };
    std::vector<at::Tensor> notices;
    const auto messages = step_.layer->pass_rows({pair, write, notice}, {}, {}, notices);
    const int64_t own = lanes_.own_rank();
    for (size_t lane = 0; lane < lanes_.lanes.size(); ++lane) {
      sum_into(own_place(lane, own), lane, own);
      const IdGroups groups =
          group_ids(step_.incoming.rows[lane], 0, step_.layer->lanes.lanes[lane].heights[own_rank()]);
      rows_.push_back(groups.rows.cpu());
      groups_.push_back(groups_on(c10::Device(lanes_.mesh->device_type()), groups, 0, groups.n()));
    }
    messages->wait();
    for (const at::Tensor& arrived : arrived_)
      grads_.push_back(scaled({arrived}, step_.layer->gradient_factor, arrived.size(0)));
  }

  /// The place of a rank's gradients in this rank's memory.
  at::Tensor own_place(size_t lane, int64_t rank) const {
    const auto at_rank = static_cast<size_t>(rank);
    return narrowed(arrived_[lane], 0, step_.incoming.firsts[lane][at_rank], step_.incoming.counts[lane][at_rank]);
  }

  /// Writes the sums for the rows of a lane that this rank requested from `rank`, in the order of their arrivals.
  void sum_into(const at::Tensor& place, size_t lane, int64_t rank) const {
    const int64_t first = step_.requests.first_from(lane, rank);
    for (size_t i = 0; i < of_tables_.size(); ++i) {
      const TableRequests& table = step_.requests.tables()[i];
      const c10::Device device = of_tables_[i].values.device();
      for (const RowRequest& request : table.requests) {
        const LaneSlice& slice = lanes_.tables[table.table].slices[request.slice];
        if (request.n() == 0 || slice.rank != rank || slice.lane != lane) continue;
        sum_groups_into(narrowed(place, 0, request.arrival - first, request.n()),
                        of_tables_[i].columns(slice.columns.begin, slice.columns.length()),
                        groups_on(device, table.groups, request.begin, request.end));
      }
    }
  }

  static IdGroups groups_on(c10::Device device, const IdGroups& groups, int64_t begin, int64_t end) {
    return {narrowed(groups.rows, 0, begin, end - begin).to(device),
            narrowed(groups.starts, 0, begin, end - begin + 1).to(device),
            groups.order.to(device),
            {}};
  }

  size_t own_rank() const { return static_cast<size_t>(lanes_.own_rank()); }

  bool updates_with_its_lane(size_t t) const {
    return wanted_[t] && !lanes_.tables[t].is_replicated && step_.sinks[t].updates_alone(*lanes_.tables[t].spec);
  }

  /// Updates tables whose optimizers need nothing from other ranks, in one call per lane.
  void update_lanes() const {
    std::vector<std::vector<UpdatedRows>> updated(lanes_.lanes.size());
    for (size_t t = 0; t < lanes_.tables.size(); ++t) {
      if (!updates_with_its_lane(t)) continue;
      const LayerTable& table = lanes_.tables[t];
      std::vector<UpdatedRows> boxes = step_.sinks[t].begin_update();
      for (size_t i = 0; i < boxes.size(); ++i)
        if (const LaneSlice* slice = lanes_.own_slice(table, table.spec->boxes()[i])) {
          boxes[i].first_row = slice->first_row;
          updated[slice->lane].push_back(std::move(boxes[i]));
        }
    }
    for (size_t lane = 0; lane < updated.size(); ++lane) {
      std::ranges::sort(updated[lane], {}, &UpdatedRows::first_row);
      if (!updated[lane].empty()) update_rows(updated[lane], grads_[lane], groups_[lane]);
    }
  }

  at::Tensor sharded(size_t t) const {
    const LayerTable& table = lanes_.tables[t];
    if (updates_with_its_lane(t)) return {};
    std::vector<BoxGroups> boxes;
    for (const Box& box : table.spec->boxes()) {
      const LaneSlice* slice = lanes_.own_slice(table, box);
      if (slice == nullptr) {  // no rows
        const at::Tensor none = at::empty({0}, options(at::kLong));
        boxes.push_back({{none, at::zeros({1}, options(at::kLong)), none, {}},
                         {at::empty({0, box.sizes[1]}, options(table.spec->dtype()))}});
        continue;
      }
      const IdGroups& groups = groups_[slice->lane];
      const auto* rows = rows_[slice->lane].const_data_ptr<int64_t>();
      const auto first_from = [&](int64_t row) { return std::lower_bound(rows, rows + groups.n(), row) - rows; };
      const int64_t begin = first_from(slice->first_row), end = first_from(slice->first_row + slice->rows.length());
      boxes.push_back({{groups.rows.narrow(0, begin, end - begin) - slice->first_row,
                        groups.starts.narrow(0, begin, end - begin + 1),
                        groups.order,
                        {}},
                       grads_[slice->lane]});
    }
    return step_.sinks[t].take_groups(table.spec, boxes);
  }

  /// This rank's gradients of a replicated table, Partial. A dense gradient is reduced together with those of other replicated leaves at the end of
  /// the backward. Without layout if there is none.
  TableGrads replicated_grads(size_t t) const {
    const std::vector<size_t>& features = step_.layer->features_of[t];
    if (!wanted_[t] || !lanes_.tables[t].is_replicated || features.empty()) return {};
    std::vector<at::Tensor> ids;
    for (const size_t f : features) ids.push_back(step_.ids[f].ids);
    const at::Tensor all_ids = at::cat(ids).to(lanes_.mesh->device_type());
    const RowGrads grads = scaled(of_table(features), step_.layer->gradient_factor, all_ids.numel());
    return {lanes_.tables[t].spec->with_placements({Placement::partial()}), {{all_ids, grads}}};
  }

  const LookupStep& step_;
  const TableLanes& lanes_;
  const std::vector<bool>& wanted_;  // by table
  std::vector<RowGrads> of_features_;
  std::vector<RowGrads> of_tables_;  // in the order of the requests
  // By lane: gradients of this rank's rows, from all ranks.
  std::vector<at::Tensor> arrived_;
  std::vector<RowGrads> grads_;
  std::vector<IdGroups> groups_;
  std::vector<at::Tensor> rows_;  // of the groups, on the CPU
};

}  // namespace

StepGradients step_gradients(const LookupStep& step, const std::vector<at::Tensor>& grads,
                             const std::vector<bool>& wanted) {
  Backward backward(step, grads, wanted);
  StepGradients result;
  for (const size_t f : step.weighted) result.weights.push_back(backward.weights(f));
  if (step.trains_tables)
    result.tables = backward.tables();
  else  // sends nothing, because other ranks may have no graph
    result.tables.resize(step.layer->lanes.tables.size());
  return result;
}

}  // namespace shardwise
