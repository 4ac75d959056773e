#include "wrappers/distributed_embedding/lookup_step.h"

#include "ops/embedding/saved_state.h"
#include "runtime/comm/comm_trace.h"
#include "runtime/tensor/below_autograd.h"
#include "wrappers/distributed_embedding/layer_name.h"
#include "wrappers/distributed_embedding/row_gradients.h"

#include <ATen/ops/cat.h>
#include <fmt/format.h>

#include <algorithm>

namespace shardwise {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

RowsUnderWay::RowsUnderWay(const LookupStep& step) {
  const TableLanes& lanes = step.layer->lanes;
  const Group& group = *lanes.mesh->group();
  const c10::Device device(lanes.mesh->device_type());
  const int64_t own = lanes.own_rank();
  std::vector<Message> sends, receives;
  for (size_t lane = 0; lane < lanes.lanes.size(); ++lane) {
    const auto options = at::TensorOptions().dtype(lanes.lanes[lane].dtype).device(device);
    const int64_t width = lanes.lanes[lane].width;
    arrivals_.push_back(step.layer->buffers.take(step.requests.n_arrivals(lane), width, options));
    const at::Tensor& block = step.layer->memory.block(lane);
    for (int64_t rank = 0; rank < lanes.n_ranks(); ++rank) {
      const auto at_rank = static_cast<size_t>(rank);
      const at::Tensor asked = step.incoming.rows[lane].narrow(0, step.incoming.firsts[lane][at_rank],
                                                               step.incoming.counts[lane][at_rank]);
      const at::Tensor place =
          arrivals_[lane].narrow(0, step.requests.first_from(lane, rank), step.requests.n_from(lane, rank));
      if (rank == own) {
        lookup_rows_into(place, block, asked, 0);
        continue;
      }
      if (place.numel() > 0) receives.push_back({group.ranks[at_rank], place});
      if (asked.numel() == 0 || width == 0) continue;
      const at::Tensor found = step.layer->buffers.take(asked.numel(), width, options);
      sends.push_back({group.ranks[at_rank], found, [=] { lookup_rows_into(found, block, asked, 0); }});
    }
  }
  messages_ = exchange(group, device, std::move(sends), std::move(receives));
}

std::vector<at::Tensor> RowsUnderWay::wait() {
  messages_->wait();
  return std::move(arrivals_);
}

namespace {

/// A feature's result from the rows of one part of its table's columns: `numbers` are those of its ids in `rows`.
at::Tensor combined(const FeatureIds& feature, const at::Tensor& rows, const at::Tensor& numbers, at::Tensor* chosen) {
  if (!feature.pooling) return lookup_rows(rows, numbers, 0);
  return pool_rows(rows, 0, feature.bags(numbers), *feature.pooling,
                   *feature.pooling == kernels::Pooling::kMax ? chosen : nullptr);
}

/// Writes down which id each maximum came from.
at::Tensor result_of(const LookupStep& step, size_t f, const std::vector<at::Tensor>& arrivals,
                     at::TensorList tables, at::Tensor& chosen) {
  const TableLanes& lanes = step.layer->lanes;
  const size_t t = step.layer->features[f].table;
  const LayerTable& table = lanes.tables[t];
  const FeatureIds& feature = step.ids[f];
  std::vector<int64_t> sizes = feature.sizes;
  sizes.push_back(table.spec->sizes()[1]);
  if (table.is_replicated)
    return combined(feature, maybe_dtensor(tables[t])->shards()[0], feature.ids.to(tables[t].device()), &chosen)
        .view(sizes);
  const TableRequests& requests = *step.requests.of_table(t);
  std::vector<at::Tensor> parts, chosen_parts;
  for (size_t part = 0; part < table.parts.size(); ++part) {
    const size_t lane = lanes.lane_of(table, part);
    const at::Tensor numbers = step.requests.arrivals(lanes, requests, f, part).to(arrivals[lane].device());
    chosen_parts.emplace_back();
    parts.push_back(combined(feature, arrivals[lane], numbers, &chosen_parts.back()));
  }
  if (parts.size() == 1) {
    chosen = chosen_parts[0];
    return parts[0].view(sizes);
  }
  if (chosen_parts[0].defined()) chosen = at::cat(chosen_parts, 1);
  return at::cat(parts, -1).view(sizes);
}

std::vector<at::Tensor> results_of(LookupStep& step, const std::vector<at::Tensor>& arrivals,
                                   at::TensorList tables) {
  const BelowAutograd guard;
  std::vector<at::Tensor> results;
  step.chosen.resize(step.ids.size());
  for (size_t f = 0; f < step.ids.size(); ++f) results.push_back(result_of(step, f, arrivals, tables, step.chosen[f]));
  return results;
}

bool any_requires_grad(at::TensorList tensors) {
  return std::ranges::any_of(tensors, [](const at::Tensor& each) { return each.defined() && each.requires_grad(); });
}

struct Combine : torch::autograd::Function<Combine> {
  static variable_list forward(AutogradContext* ctx, at::TensorList tables, at::TensorList weights,
                               LookupStep& step, RowsUnderWay& rows) {
    std::vector<at::Tensor> arrivals = rows.wait();
    variable_list results = results_of(step, arrivals, tables);
    for (const at::Tensor& table : tables) step.sinks.push_back(GradientSink::of(table, step.layer->is_sparse));
    if (!weights.empty()) {
      step.arrivals = std::move(arrivals);
      for (size_t t = 0; t < tables.size(); ++t)
        step.replicated.push_back(step.layer->lanes.tables[t].is_replicated ? maybe_dtensor(tables[t])->shards()[0]
                                                                            : at::Tensor());
    }
    ctx->set_materialize_grads(false);
    keep_state(ctx, std::move(step));
    return results;
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    for (const at::Tensor& grad : grads)
      TORCH_CHECK_NOT_IMPLEMENTED(
          !c10::GradMode::is_enabled() || !grad.defined() || !grad.requires_grad(),
          fmt::format("[{}] has no derivative of second order. Use F.embedding and sums.", kLayer));
    const BelowAutograd guard;
    const CommScope scope("DistributedEmbedding_backward");
    const LookupStep step = kept_state<LookupStep>(ctx);
    StepGradients result = step_gradients(step, grads);
    variable_list all = std::move(result.tables);
    all.insert(all.end(), result.weights.begin(), result.weights.end());
    all.resize(all.size() + 2);  // the step and its rows are no variables
    return all;
  }
};

}  // namespace

std::vector<at::Tensor> combine(LookupStep step, RowsUnderWay rows, const std::vector<at::Tensor>& tables,
                                const std::vector<at::Tensor>& weights) {
  if (c10::GradMode::is_enabled() && (any_requires_grad(tables) || !weights.empty()))
    return Combine::apply(at::TensorList(tables), at::TensorList(weights), step, rows);
  return results_of(step, rows.wait(), tables);
}

}  // namespace shardwise
