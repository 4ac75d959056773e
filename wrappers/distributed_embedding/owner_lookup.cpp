#include "wrappers/distributed_embedding/owner_lookup.h"

#include "ops/embedding/saved_state.h"
#include "runtime/comm/comm_scope.h"
#include "runtime/redistribute/packed_messages.h"
#include "runtime/tensor/below_autograd.h"
#include "text/check.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>

#include <algorithm>

namespace shardwise {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

int64_t n_samples_of(const FeatureIds& ids) { return ids.sizes[0]; }
/// 0 if results have no dim for the rows of a sample, else 1 + rows per sample.
int64_t rows_code_of(const FeatureIds& ids) { return ids.sizes.size() == 1 ? 0 : ids.sizes[1] + 1; }

bool has_part(const LayerTable& table, int64_t rank) {
  return table.is_replicated ||
         std::ranges::any_of(table.slices, [&](const auto& slice) { return slice.rank == rank; });
}

/// The vectors that this rank combines for all samples, by feature and slice of its table.
std::vector<std::vector<at::Tensor>> combined_here(OwnerStep& step) {
  const TableLanes& lanes = step.layer->lanes;
  const TableMemory& memory = step.layer->memory;
  std::vector<std::vector<at::Tensor>> combined(step.ids.size());
  for (size_t f = 0; f < step.ids.size(); ++f) {
    const auto& slices = lanes.tables[step.layer->features[f].table].slices;
    combined[f].resize(slices.size());
    step.chosen[f].resize(std::max<size_t>(slices.size(), 1));
    for (size_t place = 0; place < slices.size(); ++place)
      if (const LaneSlice& slice = slices[place]; slice.rank == lanes.own_rank()) {
        const at::Tensor& slots = step.slots[f][place];
        if (slots.defined()) memory.cache(slice.lane)->catch_up();  // the table may have been written to since start()
        combined[f][place] =
            slots.defined()
                ? step.ids[f]->combined(memory.cache(slice.lane)->values(), slots, &step.chosen[f][place])
                : step.ids[f]->combined(memory.block(slice.lane).narrow(0, slice.first_row, slice.rows.length()),
                                        step.ids[f]->ids.to(lanes.mesh->device_type()), &step.chosen[f][place]);
      }
  }
  return combined;
}

std::vector<at::Tensor> results_of_owners(OwnerStep& step, at::TensorList tables) {
  const BelowAutograd guard;
  const TableLanes& lanes = step.layer->lanes;
  const Group& group = *lanes.mesh->group();
  const int64_t own = lanes.own_rank();
  step.chosen.resize(step.ids.size());
  const auto combined = combined_here(step);
  step.slots.clear();
  PackedMessages messages(c10::Device(lanes.mesh->device_type()));
  std::vector<at::Tensor> results;
  for (size_t f = 0; f < step.ids.size(); ++f) {
    const size_t t = step.layer->features[f].table;
    const int64_t n_columns = lanes.tables[t].spec->sizes()[1];
    if (lanes.tables[t].is_replicated) {
      const FeatureIds& feature = *step.ids[f];
      results.push_back(
          feature
              .combined(maybe_dtensor(tables[t])->shards()[0], feature.ids.to(tables[t].device()), &step.chosen[f][0])
              .view(feature.sizes_with(n_columns)));
      continue;
    }
    const at::Tensor result = at::empty({step.rows_of(own, f).length(), n_columns}, step.layer->memory.options(t));
    for (size_t place = 0; place < lanes.tables[t].slices.size(); ++place) {
      const LaneSlice& slice = lanes.tables[t].slices[place];
      const at::Tensor columns = result.narrow(1, slice.columns.begin, slice.columns.length());
      if (slice.rank != own) {
        messages.receive(group.ranks[static_cast<size_t>(slice.rank)], columns);
        continue;
      }
      for (int64_t rank = 0; rank < lanes.n_ranks(); ++rank) {
        const Interval rows = step.rows_of(rank, f);
        const at::Tensor vectors = combined[f][place].narrow(0, rows.begin, rows.length());
        if (rank == own)
          columns.copy_(vectors);
        else
          messages.send(group.ranks[static_cast<size_t>(rank)], vectors);
      }
    }
    const Dims sizes{step.samples_of(own).length(), step.rows_per_sample[f], n_columns};
    results.push_back(step.has_rows[f] ? result.view(sizes) : result);
  }
  messages.start(group);
  messages.finish();
  return results;
}

struct CombineAtOwners : torch::autograd::Function<CombineAtOwners> {
  static variable_list forward(AutogradContext* ctx, at::TensorList tables, OwnerStep& step) {
    variable_list results = results_of_owners(step, tables);
    ctx->set_materialize_grads(false);
    keep_state(ctx, std::move(step));
    return results;
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    check_first_order(grads);
    const BelowAutograd guard;
    const OwnerStep step = kept_state<OwnerStep>(ctx);
    const auto layouts = [&] { return step.layer->words("gradients", step.number); };
    const CommScope scope("DistributedEmbedding_backward", CommScope::Cause::kOperator, layouts);
    variable_list result = owner_gradients(step, grads, wanted_tables(*step.layer, ctx));
    for (const HoldPtr& hold : step.holds) hold->release();
    result.emplace_back();  // the step is no variable
    return result;
  }
};

/// The numbers that all ranks must agree on: the type of an error, samples, rows per sample by feature; -1 if this rank does not know a number.
std::vector<int64_t> numbers_of(const LayerTablesPtr& layer, const std::vector<std::optional<FeatureIds>>& ids,
                                const RankError& error) {
  std::vector<int64_t> numbers{static_cast<int64_t>(error.type), -1, -1};
  for (size_t f = 0; f < layer->features.size(); ++f) {
    const bool knows = f < ids.size() && ids[f];
    numbers.push_back(knows ? rows_code_of(*ids[f]) : -1);
    if (!knows) continue;
    int64_t& samples = numbers[layer->lanes.tables[layer->features[f].table].is_replicated ? 2 : 1];
    SW_CHECK_VALUE(samples == -1 || samples == n_samples_of(*ids[f]),
                   "[{}] feature {} has {} samples, but the features before it have {}. Give the same number for all.",
                   kLayer, layer->features[f].name, n_samples_of(*ids[f]), samples);
    samples = n_samples_of(*ids[f]);
  }
  return numbers;
}

std::optional<FeatureIds> own_ids(const LayerTablesPtr& layer, size_t f, const std::optional<FeatureInput>& input) {
  const TableLanes& lanes = layer->lanes;
  const Feature& feature = layer->features[f];
  const LayerTable& table = lanes.tables[feature.table];
  if (!has_part(table, lanes.own_rank())) return std::nullopt;
  SW_CHECK_VALUE(input,
                 "[{}] feature {} has no ids on rank {}, which has columns of table {}. With dp_input=False each rank "
                 "gives the ids of all samples for its tables.",
                 kLayer, feature.name, lanes.own_rank(), table.name);
  SW_CHECK_VALUE(!input->weights || !input->weights->requires_grad(),
                 "[{}] the weights of feature {} require a gradient, which dp_input=False does not support. Detach "
                 "them, or use dp_input=True.",
                 kLayer, feature.name);
  SW_CHECK_VALUE(feature.combiner != Combiner::kNone || !(input->offsets || input->lengths),
                 "[{}] feature {} is ragged and its rows are not combined, so no rank knows how many rows it gets. "
                 "Combine them, or use dp_input=True.",
                 kLayer, feature.name);
  FeatureIds ids = FeatureIds::of(feature, *input, *table.spec);
  check_range(feature, ids.ids, table);
  return ids;
}

/// For tables in files: copies the rows of all ids to slots.
void hold_rows(OwnerStep& step) {
  const TableLanes& lanes = step.layer->lanes;
  for (size_t t = 0; t < lanes.tables.size(); ++t) {
    const LayerTable& table = lanes.tables[t];
    for (size_t place = 0; place < table.slices.size(); ++place) {
      const LaneSlice& slice = table.slices[place];
      const HotRowsPtr cache = slice.rank == lanes.own_rank() ? step.layer->memory.cache(slice.lane) : nullptr;
      if (!cache) continue;
      const std::vector<size_t>& features = step.layer->features_of[t];
      std::vector<at::Tensor> ids;
      std::vector<int64_t> n_ids;
      for (const size_t f : features) {
        ids.push_back(step.ids[f]->ids);
        n_ids.push_back(ids.back().numel());
      }
      HotRows::Result held = cache->hold(at::cat(ids));
      if (!held.hold)
        CacheShortage{static_cast<int64_t>(slice.lane), held.n_rows, held.n_held, cache->n_slots()}.raise(lanes,
                                                                                                          slice.rank);
      const auto parts = held.hold->slots().split_with_sizes(n_ids);
      for (size_t i = 0; i < features.size(); ++i) step.slots[features[i]][place] = parts[i];
      step.holds.push_back(std::move(held.hold));
    }
  }
}

}  // namespace

void check_owners(const TableLanes& lanes) {
  for (const LayerTable& table : lanes.tables)
    for (const LaneSlice& slice : table.slices)
      SW_CHECK_VALUE(slice.rows.length() == table.spec->sizes()[0],
                     "[{}] table {} is sharded by rows, so no rank can combine all rows of a sample. With "
                     "dp_input=False use no row_slice_threshold, or a higher one.",
                     kLayer, table.name);
}

OwnerStep start_owner_lookup(const LayerTablesPtr& layer, const std::vector<std::optional<FeatureInput>>& inputs,
                             RankError error, const OwnFacts& own) {
  const BelowAutograd guard;
  const TableLanes& lanes = layer->lanes;
  const Group& group = *lanes.mesh->group();
  OwnerStep step;
  step.layer = layer;
  std::vector<int64_t> numbers;
  try {
    if (!error)
      SW_CHECK_VALUE(inputs.size() == layer->features.size(),
                     "[{}] got {} inputs for {} features. Give one for each, and None for a table of another rank.",
                     kLayer, inputs.size(), layer->features.size());
    for (size_t f = 0; !error && f < inputs.size(); ++f) step.ids.push_back(own_ids(layer, f, inputs[f]));
    numbers = numbers_of(layer, step.ids, error);
    if (!error) {
      for (const Feature& feature : layer->features)
        step.slots.emplace_back(std::max<size_t>(layer->lanes.tables[feature.table].slices.size(), 1));
      hold_rows(step);
    }
  } catch (const std::exception&) {
    error = RankError::current();
    numbers = numbers_of(layer, {}, error);
  }
  const auto n_agreed = static_cast<int64_t>(numbers.size());
  for (const int64_t number : own.facts.numbers()) numbers.push_back(number);
  const auto all = gather_alike(group, "all_gather", numbers, /*is_counted=*/true);
  std::vector<StepFacts> facts;
  for (const auto& each : all) facts.push_back(StepFacts::of(&each[n_agreed]));
  if (std::ranges::any_of(all, [](const auto& each) { return each[0] != 0; })) agree(group, kLayer, Facts(), error);
  check_alike(lanes, facts, own);

  const auto agreed = [&](int64_t column, const std::string& what) {
    int64_t value = -1;
    for (int64_t rank = 0; rank < group.size(); ++rank) {
      SW_CHECK_VALUE(value == -1 || all[rank][column] == -1 || all[rank][column] == value,
                     "[{}] rank {} gives {} {}, but the ranks before it give {}. Give the same samples on all ranks "
                     "that have a table.",
                     kLayer, rank, all[rank][column], what, value);
      if (all[rank][column] != -1) value = all[rank][column];
    }
    return value;
  };
  step.n_samples = agreed(1, "samples");
  if (step.n_samples == -1) {  // all tables are replicated
    step.n_samples = 0;
    for (int64_t rank = 0; rank < group.size(); ++rank) step.n_samples += std::max<int64_t>(all[rank][2], 0);
  } else {
    for (int64_t rank = 0; rank < group.size(); ++rank) {
      if (!group.sends && rank != group.index) continue;
      const int64_t expected = step.samples_of(rank).length();
      SW_CHECK_VALUE(all[rank][2] == -1 || all[rank][2] == expected,
                     "[{}] rank {} gives {} samples for its replicated tables, but {} of the {} samples are its own. "
                     "Give only its own samples.",
                     kLayer, rank, all[rank][2], expected, step.n_samples);
    }
  }
  for (size_t f = 0; f < layer->features.size(); ++f) {
    const int64_t code = agreed(3 + static_cast<int64_t>(f), "ids per sample of feature " + layer->features[f].name);
    step.has_rows.push_back(code > 0);
    step.rows_per_sample.push_back(code > 0 ? code - 1 : 1);
  }
  return step;
}

std::vector<at::Tensor> combine_at_owners(OwnerStep step, const std::vector<at::Tensor>& tables) {
  const bool needs_grad =
      c10::GradMode::is_enabled() && std::ranges::any_of(tables, [](const auto& each) { return each.requires_grad(); });
  return needs_grad ? CombineAtOwners::apply(at::TensorList(tables), step) : results_of_owners(step, tables);
}

}  // namespace shardwise
