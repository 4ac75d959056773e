#include "wrappers/distributed_embedding/distributed_embedding.h"

#include "runtime/api/gradient_layout.h"
#include "runtime/comm/comm_scope.h"
#include "runtime/tensor/below_autograd.h"
#include "text/check.h"
#include "wrappers/distributed_embedding/whole_tables.h"

namespace shardwise {
namespace {

void check_may_concatenate(const LayerTables& layer, bool dp_input) {
  SW_CHECK_VALUE(dp_input, "[{}] concatenate=True needs dp_input=True. Use torch.cat.", kLayer);
  SW_CHECK_VALUE(!layer.features.empty(), "[{}] there are no inputs to concatenate.", kLayer);
  for (const Feature& feature : layer.features) {
    SW_CHECK_VALUE(
        feature.combiner != Combiner::kNone,
        "[{}] feature {} is not combined: concatenate=True needs one vector per sample. Give its table a combiner.",
        kLayer, feature.name);
    const Spec &own = *layer.lanes.tables[feature.table].spec,
               &first = *layer.lanes.tables[layer.features[0].table].spec;
    SW_CHECK_TYPE(own.dtype() == first.dtype(),
                  "[{}] table {} is {}, but the table of the first feature is {}: concatenate=True needs one dtype. "
                  "Use one dtype, or torch.cat.",
                  kLayer, layer.lanes.tables[feature.table].name, c10::toString(own.dtype()),
                  c10::toString(first.dtype()));
  }
}

void check_features(const std::vector<Feature>& features, const TableLanes& lanes) {
  std::vector<bool> is_used(lanes.tables.size());
  for (const Feature& feature : features) {
    SW_CHECK_VALUE(feature.table < lanes.tables.size(),
                   "[{}] feature {} uses table {}, but there are only {} tables. Use an index below this number.",
                   kLayer, feature.name, feature.table, lanes.tables.size());
    is_used[feature.table] = true;
  }
  for (size_t t = 0; t < is_used.size(); ++t)
    SW_CHECK_VALUE(is_used[t], "[{}] table {} has no input. Leave it out, or name it in input_table_map.", kLayer,
                   lanes.tables[t].name);
}

/// Throws: c10::ValueError if results cannot be concatenated.
void check_concatenation(const std::vector<Feature>& features, const std::vector<FeatureIds>& ids) {
  for (size_t f = 1; f < ids.size(); ++f)
    SW_CHECK_VALUE(ids[f].sizes == ids[0].sizes,
                   "[{}] feature {} has {} samples, but feature {} has {}: their vectors cannot be concatenated. Give "
                   "the same number for all, or use concatenate=False.",
                   kLayer, features[f].name, ids[f].sizes[0], features[0].name, ids[0].sizes[0]);
}

std::vector<FeatureIds> ids_of(const std::vector<Feature>& features, const DistributedEmbedding::Inputs& inputs,
                               const TableLanes& lanes) {
  SW_CHECK_VALUE(inputs.size() == features.size(),
                 "[{}] got {} inputs for {} features. Give one for each, in their order.", kLayer, inputs.size(),
                 features.size());
  std::vector<FeatureIds> ids;
  for (size_t f = 0; f < features.size(); ++f) {
    const LayerTable& table = lanes.tables[features[f].table];
    SW_CHECK_VALUE(inputs[f], "[{}] feature {} has no ids. Give an empty tensor where there are none.", kLayer,
                   features[f].name);
    ids.push_back(FeatureIds::of(features[f], *inputs[f], *table.spec));
    if (table.is_replicated) check_range(features[f], ids.back().ids, table);
  }
  return ids;
}

/// Collective if tables are stored in files, because the disk of a rank may be full.
std::shared_ptr<LayerTables> new_tables(TableLanes lanes, std::vector<Feature> features, bool has_files) {
  const MeshPtr mesh = lanes.mesh;
  std::shared_ptr<LayerTables> tables;
  const auto make = [&] { tables = std::make_shared<LayerTables>(std::move(lanes), std::move(features)); };
  if (has_files)
    agree(*mesh->group(), kLayer, Facts(), RankError::of(make));
  else
    make();
  return tables;
}

}  // namespace

DistributedEmbedding::DistributedEmbedding(const std::vector<TableConfig>& configs, const std::vector<TablePlan>& plans,
                                           const MeshPtr& mesh, std::vector<Feature> features, Options options,
                                           const TableStorages& storages) {
  SW_CHECK_VALUE(mesh->is_member(), "[{}] rank {} is outside the mesh {}. Make the layer on its ranks alone.", kLayer,
                 mesh->rank(), to_string(*mesh));
  TableLanes lanes = TableLanes::of(configs, plans, mesh, storages);
  check_features(features, lanes);
  auto layer = new_tables(std::move(lanes), std::move(features), /*has_files=*/!storages.empty());
  if (options.mean_gradients) layer->gradient_factor = 1.0 / static_cast<double>(mesh->size());
  layer->number = mesh->group()->record->next_number(kLayer);
  layer->is_sparse = options.is_sparse;
  dp_input_ = options.dp_input;
  layer->concatenates = options.concatenates;
  if (layer->concatenates) check_may_concatenate(*layer, dp_input_);
  if (!dp_input_) check_owners(layer->lanes);
  exchange_ = std::make_shared<RequestExchange>(layer->lanes);
  layer_ = std::move(layer);
}

std::shared_ptr<DistributedEmbedding::Lookup> DistributedEmbedding::start(const Inputs& inputs,
                                                                          const std::vector<at::Tensor>& tables,
                                                                          RankError error) {
  if (started_) started_->try_fetch();
  const BelowAutograd guard;
  auto lookup = std::make_shared<Lookup>();
  LookupStep& step = lookup->step_;
  step.layer = layer_;
  step.number = ++counts_->n_started;
  lookup->counts_ = counts_;
  lookup->tables_ = tables;
  const auto layouts = [&] { return step.layer->words("ids", step.number); };
  const CommScope scope(kLayer, CommScope::Cause::kProgram, layouts);
  if (!error)
    error = RankError::of([&] {
      layer_->memory.check(tables);
      step.sinks = layer_->sinks_of(tables);
    });
  OwnFacts own(counts_, step.sinks, tables);
  if (!dp_input_) {
    lookup->at_owners_ = start_owner_lookup(layer_, inputs, error, std::move(own));
    lookup->at_owners_->number = step.number;
    lookup->at_owners_->sinks = std::move(step.sinks);
    return lookup;
  }
  layer_->find_peers();
  step.requests = RowRequests(layer_->lanes);
  if (!error)
    error = RankError::of([&] {
      step.ids = ids_of(layer_->features, inputs, layer_->lanes);
      if (layer_->concatenates) check_concatenation(layer_->features, step.ids);
      step.requests = RowRequests(layer_->lanes, layer_->features, layer_->features_of, step.ids);
      for (size_t f = 0; f < inputs.size(); ++f)
        if (inputs[f]->weights && inputs[f]->weights->requires_grad()) {
          step.weighted.push_back(f);
          lookup->weights_.push_back(*inputs[f]->weights);
        }
    });
  if (!error)
    for (size_t lane = 0; lane < layer_->lanes.lanes.size(); ++lane)
      step.arrivals.push_back(layer_->buffers.take(
          step.requests.n_arrivals(lane), layer_->lanes.lanes[lane].width,
          at::TensorOptions().dtype(layer_->lanes.lanes[lane].dtype).device(layer_->lanes.mesh->device_type())));
  note_traffic(step);
  lookup->exchange_ = exchange_;
  std::vector<int64_t> names;
  for (const at::Tensor& lane : step.arrivals) names.push_back(layer_->peers->name_of(lane));
  lookup->ids_ = exchange_->start(step.requests, std::move(names), error, std::move(own));
  started_ = lookup;
  return lookup;
}

void DistributedEmbedding::note_traffic(const LookupStep& step) {
  const TableLanes& lanes = layer_->lanes;
  traffic_.assign(lanes.tables.size(), {});
  for (size_t f = 0; f < step.ids.size(); ++f) traffic_[layer_->features[f].table].n_ids += step.ids[f].ids.numel();
  for (const TableRequests& table : step.requests.tables()) {
    Traffic& own = traffic_[table.table];
    own.n_rows = table.groups.n();
    for (const RowRequest& request : table.requests) {
      const LaneSlice& slice = lanes.tables[table.table].slices[request.slice];
      if (slice.rank != lanes.own_rank())
        own.bytes += request.n() * slice.columns.length() * lanes.tables[table.table].spec->element_bytes();
    }
  }
}

std::vector<TablePart> DistributedEmbedding::pieces(size_t table) const {
  layer_->memory.expect_write(table);
  return layer_->memory.pieces(table);
}

int64_t DistributedEmbedding::bytes_here(size_t table) const {
  int64_t n_bytes = 0;
  for (const TablePart& piece : layer_->memory.pieces(table)) n_bytes += static_cast<int64_t>(piece.values.nbytes());
  return n_bytes;
}

std::optional<HotRows::Counts> DistributedEmbedding::cache_counts(size_t table) const {
  if (!layer_->lanes.tables[table].storage) return std::nullopt;
  HotRows::Counts sum;
  for (const HotRowsPtr& cache : layer_->memory.caches_of(table)) {
    if (!cache) continue;
    const HotRows::Counts own = cache->counts();
    sum.slots += own.slots;
    sum.hits += own.hits;
    sum.misses += own.misses;
    sum.evictions += own.evictions;
    sum.bytes_read += own.bytes_read;
    sum.bytes_written += own.bytes_written;
    sum.value_bytes += own.value_bytes;
    sum.state_bytes += own.state_bytes;
  }
  return sum;
}

at::Tensor DistributedEmbedding::gathered_rows(size_t table, Interval rows, std::optional<int64_t> root) const {
  const BelowAutograd guard;
  const CommScope scope("DistributedEmbedding.get_weights", CommScope::Cause::kProgram);
  flush();
  return shardwise::gathered_rows(layer_->lanes, layer_->memory, table, rows, root);
}

void DistributedEmbedding::Lookup::fetch() {
  try_fetch();
  if (error_) std::rethrow_exception(error_);
}

void DistributedEmbedding::Lookup::try_fetch() noexcept {
  if (error_ || rows_ || at_owners_ || !step_.layer) return;
  const BelowAutograd guard;
  const auto layouts = [&] { return step_.layer->words("rows", step_.number); };
  const CommScope scope(kLayer, CommScope::Cause::kProgram, layouts);
  try {
    step_.incoming = ids_.finish(step_.requests);
    rows_.emplace(step_, tables_);
  } catch (...) {
    error_ = std::current_exception();
  }
}

std::vector<at::Tensor> DistributedEmbedding::Lookup::wait() {
  SW_CHECK(step_.layer, "[{}] this lookup was waited for already. start() another.", kLayer);
  ++counts_->n_waited;
  fetch();
  const auto tables = std::exchange(tables_, {});
  for (const at::Tensor& table : tables)
    if (auto* impl = maybe_dtensor(table); wants_gradient_layout(*impl)) lay_out_gradient(*impl);
  if (at_owners_) {
    const auto layouts = [layer = step_.layer, number = step_.number] { return layer->words("vectors", number); };
    const CommScope scope(kLayer, CommScope::Cause::kProgram, layouts);
    step_ = {};
    return combine_at_owners(std::move(*at_owners_), tables);
  }
  std::vector<at::Tensor> weights;
  for (const at::Tensor& each : std::exchange(weights_, {})) weights.push_back(each.reshape(-1));
  const auto result = combine(std::move(step_), std::move(*rows_), tables, weights);
  step_ = {};
  return result;
}

}  // namespace shardwise
