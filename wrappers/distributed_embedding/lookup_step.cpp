#include "wrappers/distributed_embedding/lookup_step.h"

#include "ops/embedding/first_order.h"
#include "ops/embedding/saved_state.h"
#include "runtime/comm/comm_scope.h"
#include "runtime/comm/memory_view.h"
#include "runtime/tensor/below_autograd.h"
#include "wrappers/distributed_embedding/row_gradients.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>

#include <algorithm>

namespace shardwise {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

LayerTables::LayerTables(TableLanes of, std::vector<Feature> for_features)
    : lanes(std::move(of)), features(std::move(for_features)), memory(lanes), features_of(lanes.tables.size()) {
  int64_t begin = 0;
  for (size_t f = 0; f < features.size(); ++f) {
    features_of[features[f].table].push_back(f);
    const int64_t end = begin + lanes.tables[features[f].table].spec->sizes()[1];
    columns.push_back({begin, end});
    begin = end;
  }
}

std::vector<GradientSink> LayerTables::sinks_of(const std::vector<at::Tensor>& parameters) const {
  std::vector<GradientSink> sinks;
  for (size_t t = 0; t < parameters.size(); ++t) {
    GradientSink& sink = sinks.emplace_back(GradientSink::of(parameters[t], is_sparse));
    sink.caches = memory.caches_of(t);
    if (lanes.tables[t].storage) sink.check_cached(kLayer, *lanes.tables[t].spec);
  }
  return sinks;
}

RowsUnderWay::RowsUnderWay(const LookupStep& step) : held_(step.layer->lanes, step.layer->memory, step.incoming) {
  const TableLanes& lanes = step.layer->lanes;
  const Group& group = *lanes.mesh->group();
  const c10::Device device(lanes.mesh->device_type());
  const int64_t own = lanes.own_rank();
  std::vector<Message> sends, receives;
  held_.add_notices(sends, receives);
  for (size_t lane = 0; lane < lanes.lanes.size(); ++lane) {
    const auto options = at::TensorOptions().dtype(lanes.lanes[lane].dtype).device(device);
    const int64_t width = lanes.lanes[lane].width;
    arrivals_.push_back(step.layer->buffers.take(step.requests.n_arrivals(lane), width, options));
    const at::Tensor& block = held_.block(lane);
    for (int64_t rank = 0; rank < lanes.n_ranks(); ++rank) {
      const auto at_rank = static_cast<size_t>(rank);
      const int64_t n_asked = step.incoming.counts[lane][at_rank];
      const at::Tensor asked =
          held_.has(lane) ? narrowed(held_.rows(lane), 0, step.incoming.firsts[lane][at_rank], n_asked) : at::Tensor();
      const at::Tensor place =
          narrowed(arrivals_[lane], 0, step.requests.first_from(lane, rank), step.requests.n_from(lane, rank));
      if (rank == own) {
        if (asked.defined()) lookup_rows_into(place, block, asked, 0);
        continue;
      }
      if (place.numel() > 0) receives.push_back({group.ranks[at_rank], place});
      if (n_asked == 0 || width == 0) continue;
      const at::Tensor found = step.layer->buffers.take(n_asked, width, options);
      sends.push_back({group.ranks[at_rank], found, [=] {
                         if (asked.defined()) lookup_rows_into(found, block, asked, 0);
                       }});
    }
  }
  messages_ = exchange(group, device, std::move(sends), std::move(receives));
}

std::vector<at::Tensor> RowsUnderWay::wait() {
  messages_->wait();
  held_.check();
  return std::move(arrivals_);
}

namespace {

std::string no_second_order() {
  return fmt::format("[{}] has no derivative of second order. Use F.embedding and sums.", kLayer);
}

}  // namespace

void check_first_order(const std::vector<at::Tensor>& grads) {
  for (const at::Tensor& grad : grads)
    TORCH_CHECK_NOT_IMPLEMENTED(!c10::GradMode::is_enabled() || !grad.defined() || !grad.requires_grad(),
                                no_second_order());
}

std::vector<bool> wanted_tables(const LayerTables& layer, AutogradContext* ctx) {
  std::vector<bool> wanted;
  for (size_t t = 0; t < layer.lanes.tables.size(); ++t) wanted.push_back(ctx->needs_input_grad(t));
  return wanted;
}

std::vector<PartRows> rows_of_feature(const LookupStep& step, size_t f, const std::vector<at::Tensor>& arrivals,
                                      const at::Tensor& replicated) {
  const TableLanes& lanes = step.layer->lanes;
  const size_t t = step.layer->features[f].table;
  const LayerTable& table = lanes.tables[t];
  if (table.is_replicated) return {{replicated, step.ids[f].ids.to(replicated.device()), {0, table.spec->sizes()[1]}}};
  const TableRequests& requests = *step.requests.of_table(t);
  std::vector<PartRows> parts;
  for (size_t part = 0; part < table.parts.size(); ++part) {
    const at::Tensor& rows = arrivals[TableLanes::lane_of(table, part)];
    parts.push_back({rows, step.requests.arrivals(lanes, requests, f, part).to(rows.device()), table.parts[part]});
  }
  return parts;
}

namespace {

/// Writes the combined rows of all columns into `place` [samples or ids, columns], whose last dim has stride 1. For maxima, `chosen` gets the index
/// of the id that each one came from.
void write_result(const at::Tensor& place, const FeatureIds& feature, const std::vector<PartRows>& parts,
                  at::Tensor& chosen) {
  std::vector<at::Tensor> chosen_parts;
  for (const auto& [rows, numbers, columns] : parts) {
    const at::Tensor own = narrowed(place, 1, columns.begin, columns.length());
    chosen_parts.emplace_back();
    if (feature.pooling)
      own.copy_(feature.combined(rows, numbers, &chosen_parts.back()));
    else
      lookup_rows_into(own, rows, numbers, 0);
  }
  if (chosen_parts[0].defined()) chosen = at::cat(chosen_parts, 1);
}

std::vector<at::Tensor> results_of(LookupStep& step, const std::vector<at::Tensor>& arrivals, at::TensorList tables) {
  const BelowAutograd guard;
  const LayerTables& layer = *step.layer;
  std::vector<at::Tensor> results;
  step.chosen.resize(step.ids.size());
  const auto n_rows_of = [](const FeatureIds& ids) { return ids.pooling ? ids.offsets.numel() : ids.ids.numel(); };
  const auto new_rows = [&](size_t f, int64_t n_columns) {
    return at::empty({n_rows_of(step.ids[f]), n_columns}, layer.memory.options(layer.features[f].table));
  };
  if (layer.concatenates) results.push_back(new_rows(0, layer.columns.back().end));
  for (size_t f = 0; f < step.ids.size(); ++f) {
    const size_t t = layer.features[f].table;
    const FeatureIds& feature = step.ids[f];
    const Interval columns = layer.columns[f];
    const auto parts = rows_of_feature(
        step, f, arrivals, layer.lanes.tables[t].is_replicated ? maybe_dtensor(tables[t])->shards()[0] : at::Tensor());
    if (layer.concatenates) {
      write_result(narrowed(results[0], 1, columns.begin, columns.length()), feature, parts, step.chosen[f]);
      continue;
    }
    at::Tensor result;
    if (parts.size() == 1) {
      result = feature.combined(parts[0].rows, parts[0].numbers, &step.chosen[f]);
    } else {
      result = new_rows(f, columns.length());
      write_result(result, feature, parts, step.chosen[f]);
    }
    results.push_back(result.view(feature.sizes_with(columns.length())));
  }
  return results;
}

bool any_requires_grad(at::TensorList tensors) {
  return std::ranges::any_of(tensors, [](const at::Tensor& each) { return each.defined() && each.requires_grad(); });
}

/// Splits the gradient of a concatenated result by feature.
variable_list by_feature(const LookupStep& step, const at::Tensor& grad) {
  variable_list grads(step.ids.size());
  for (size_t f = 0; f < grads.size() && grad.defined(); ++f) {
    const Interval columns = step.layer->columns[f];
    grads[f] = narrowed(grad, 1, columns.begin, columns.length());
  }
  return grads;
}

struct Combine : torch::autograd::Function<Combine> {
  static variable_list forward(AutogradContext* ctx, at::TensorList tables, at::TensorList weights, LookupStep& step,
                               RowsUnderWay& rows) {
    std::vector<at::Tensor> arrivals = rows.wait();
    variable_list results = results_of(step, arrivals, tables);
    step.holds = rows.take_holds();
    step.trains_tables = any_requires_grad(tables);
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
    check_first_order(grads);
    const BelowAutograd guard;
    const LookupStep step = kept_state<LookupStep>(ctx);
    const auto layouts = [&] { return step.layer->words("gradients", step.number); };
    const CommScope scope("DistributedEmbedding_backward", CommScope::Cause::kOperator, layouts);
    StepGradients result = step_gradients(step, step.layer->concatenates ? by_feature(step, grads[0]) : grads,
                                          wanted_tables(*step.layer, ctx));
    for (const HoldPtr& hold : step.holds) hold->release();
    for (size_t i = 0; i < step.weighted.size(); ++i) {  // the result is a product of rows and weights
      at::Tensor& table = result.tables[step.layer->features[step.weighted[i]].table];
      table = of_first_order(std::move(table), no_second_order());
      result.weights[i] = of_first_order(std::move(result.weights[i]), no_second_order());
    }
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
