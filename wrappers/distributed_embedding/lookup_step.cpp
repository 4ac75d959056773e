#include "wrappers/distributed_embedding/lookup_step.h"

#include "ops/embedding/first_order.h"
#include "ops/embedding/saved_state.h"
#include "runtime/comm/comm_scope.h"
#include "runtime/comm/memory_view.h"
#include "runtime/tensor/below_autograd.h"
#include "wrappers/distributed_embedding/row_gradients.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/tensor.h>
#include <fmt/format.h>

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

void LayerTables::find_peers() const {
  if (peers) return;
  peers.emplace(*lanes.mesh->group(), lanes.mesh->device_type());
  if (peers->shares_any()) buffers.share(*peers);
}

std::shared_ptr<Messages> LayerTables::pass_rows(const AllRows& rows, std::vector<Message> sends,
                                                 std::vector<Message> receives,
                                                 std::vector<at::Tensor>& notices) const {
  const Group& group = *lanes.mesh->group();
  notices.resize(static_cast<size_t>(lanes.n_ranks()));
  for (int64_t distance = 1; distance < lanes.n_ranks(); ++distance) {
    const int64_t rank = (lanes.own_rank() + distance) % lanes.n_ranks();
    const int64_t other = group.ranks[static_cast<size_t>(rank)];
    const bool shares = peers->shares(rank);
    std::vector<std::pair<at::Tensor, size_t>> there;  // places in the other rank's memory, and their lanes
    int64_t n_bytes_sent = 0, n_bytes_received = 0;    // with those in shared memory
    int64_t n_bytes_there = 0, n_bytes_here = 0;       // in shared memory
    for (size_t lane = 0; lane < lanes.lanes.size(); ++lane) {
      const auto [received, is_known, n_sent, place] = rows.of(lane, rank);
      const auto n_bytes = static_cast<int64_t>(received.nbytes());
      n_bytes_received += n_bytes;
      if (shares && is_known && peers->name_of(received) >= 0)
        n_bytes_here += n_bytes;
      else if (n_bytes > 0)
        receives.push_back({other, received});
      const int64_t width = lanes.lanes[lane].width;
      const int64_t n_row_bytes = width * static_cast<int64_t>(received.itemsize()), n_out = n_sent * n_row_bytes;
      n_bytes_sent += n_out;
      if (n_out == 0) continue;
      if (shares && place.block >= 0) {
        const at::Tensor bytes = peers->place(rank, place.block, place.first_row * n_row_bytes, n_out);
        there.emplace_back(memory_view(bytes, 0, {n_sent, width}, received.scalar_type()), lane);
        n_bytes_there += n_out;
        continue;
      }
      const at::Tensor out = buffers.take(n_sent, width, received.options());
      sends.push_back({other, out, [=, &rows] { rows.write(out, lane, rank); }});
    }
    if (!shares || (n_bytes_sent == 0 && n_bytes_received == 0)) continue;
    const at::Tensor notice = rows.notice(rank);
    if (n_bytes_received > 0)
      receives.push_back({other, notices[static_cast<size_t>(rank)] = at::empty_like(notice), {}, n_bytes_here});
    const auto write = [=, &rows] {
      for (const auto& [out, lane] : there) rows.write(out, lane, rank);
    };
    if (n_bytes_sent > 0) sends.push_back({other, notice, write, n_bytes_there});
  }
  return exchange(group, c10::Device(lanes.mesh->device_type()), std::move(sends), std::move(receives));
}

namespace {

bool any_requires_grad(at::TensorList tensors) {
  return std::ranges::any_of(tensors, [](const at::Tensor& each) { return each.defined() && each.requires_grad(); });
}

}  // namespace

RowsUnderWay::RowsUnderWay(LookupStep& step, const std::vector<at::Tensor>& tables)
    : held_(step.layer->lanes, step.layer->memory, step.incoming),
      arrivals_(std::exchange(step.arrivals, {})),
      gradient_places_(step.gradient_places) {
  const LayerTables& layer = *step.layer;
  const IncomingRows& incoming = step.incoming;
  if (layer.peers->shares_any() && c10::GradMode::is_enabled() && any_requires_grad(tables))
    for (size_t lane = 0; lane < arrivals_.size(); ++lane)
      gradient_places_->arrived.push_back(
          layer.buffers.take(incoming.rows[lane].numel(), arrivals_[lane].size(1), arrivals_[lane].options()));
  std::vector<Message> sends, receives;
  held_.add_notices(sends, receives);
  const auto pair = [&](size_t lane, int64_t rank) {
    const auto at_rank = static_cast<size_t>(rank);
    return LayerTables::PairRows{
        narrowed(arrivals_[lane], 0, step.requests.first_from(lane, rank), step.requests.n_from(lane, rank)), true,
        incoming.counts[lane][at_rank], incoming.arrivals[lane][at_rank]};
  };
  const auto write = [&](const at::Tensor& place, size_t lane, int64_t rank) {
    const auto at_rank = static_cast<size_t>(rank);
    if (held_.has(lane))
      lookup_rows_into(place, held_.block(lane),
                       narrowed(held_.rows(lane), 0, incoming.firsts[lane][at_rank], incoming.counts[lane][at_rank]),
                       0);
  };
  const auto notice = [&](int64_t rank) {
    std::vector<int64_t> words;
    for (size_t lane = 0; lane < arrivals_.size(); ++lane) {
      const auto& arrived = gradient_places_->arrived;
      words.push_back(arrived.empty() ? -1 : layer.peers->name_of(arrived[lane]));
      words.push_back(incoming.firsts[lane][static_cast<size_t>(rank)]);
    }
    return at::tensor(words, at::kLong);
  };
  messages_ = layer.pass_rows({pair, write, notice}, std::move(sends), std::move(receives), notices_);
  const int64_t own = layer.lanes.own_rank();
  for (size_t lane = 0; lane < arrivals_.size(); ++lane) write(pair(lane, own).received, lane, own);
}

std::vector<at::Tensor> RowsUnderWay::wait() {
  messages_->wait();
  held_.check();
  gradient_places_->there = std::move(notices_);
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
