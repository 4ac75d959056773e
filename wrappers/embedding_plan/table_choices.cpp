#include "wrappers/embedding_plan/table_choices.h"

#include <algorithm>
#include <cmath>

namespace shardwise::detail {

TableChoices::TableChoices(const LoadModel& model, size_t table, const EmbeddingPlanOptions& options,
                           bool may_replicate, bool may_shard)
    : n_ranks_(static_cast<double>(model.n_ranks())) {
  const TableConfig& config = model.tables()[table];
  const Treatment asked = treatment_by_thresholds(config, options);
  const bool is_replicated = asked == Treatment::kReplicated, is_sharded_by_rows = asked == Treatment::kRowParallel;
  // A given threshold decides; without it both are allowed.
  may_replicate_ = may_replicate && (is_replicated || (!options.data_parallel_threshold && !is_sharded_by_rows));
  may_shard_rows_ = may_shard && !is_replicated && (is_sharded_by_rows || !options.row_slice_threshold);
  may_be_table_parallel_ = may_shard && !is_replicated && !is_sharded_by_rows;

  n_columns_ = config.n_columns;
  most_slices_ = options.column_slice_threshold
                     ? n_column_slices(config, *options.column_slice_threshold, model.n_ranks())
                     : std::min(model.n_ranks(), config.n_columns);
  const Interval rows{0, config.n_rows};
  const Interval first = balanced_part(config.n_rows, model.n_ranks(), 0);
  replicated_ = model.replicated_seconds(table);
  whole_ = model.slice_seconds(table, rows);
  rows_total_ = whole_.of(n_columns_) + (n_ranks_ - 1) * model.seconds_of_empty_slice();
  rows_most_ = model.slice_seconds(table, first, n_columns_);
  n_bytes_ = static_cast<double>(model.slice_bytes(table, config.n_rows, n_columns_));
  row_state_bytes_ = static_cast<double>(model.slice_bytes(table, config.n_rows, 0));
  column_bytes_ = static_cast<double>(model.slice_bytes(table, config.n_rows, 1)) - row_state_bytes_;
  rows_most_bytes_ = static_cast<double>(model.slice_bytes(table, first.length(), n_columns_));
}

std::optional<Choice> TableChoices::replicated() const {
  if (!may_replicate_) return {};
  return Choice{Treatment::kReplicated, 1, replicated_, n_bytes_, replicated_};
}

std::optional<Choice> TableChoices::row_parallel(const SliceLimit& limit) const {
  if (!may_shard_rows_ || rows_most_ > limit.seconds || rows_most_bytes_ > limit.n_bytes) return {};
  return Choice{Treatment::kRowParallel, 1, rows_total_ / n_ranks_, n_bytes_ / n_ranks_, rows_most_};
}

std::optional<Choice> TableChoices::table_parallel(const SliceLimit& limit) const {
  if (!may_be_table_parallel_) return {};
  const auto n_columns = static_cast<double>(n_columns_);
  const double by_time = (limit.seconds - whole_.per_slice) / whole_.per_column;
  const double by_bytes = (limit.n_bytes - row_state_bytes_) / column_bytes_;
  const double widest = std::floor(std::min({by_time, by_bytes, n_columns}));
  if (!(widest >= 1)) return {};
  const auto n_slices = static_cast<int64_t>(std::ceil(n_columns / widest));
  return in_slices(n_slices);
}

std::optional<Choice> TableChoices::in_slices(int64_t n_slices) const {
  if (!may_be_table_parallel_ || n_slices < 1 || n_slices > most_slices_) return {};
  const auto times = static_cast<double>(n_slices);
  return Choice{Treatment::kTableParallel, n_slices,
                (times * whole_.per_slice + static_cast<double>(n_columns_) * whole_.per_column) / n_ranks_,
                (n_bytes_ + (times - 1) * row_state_bytes_) / n_ranks_, 0};
}

std::optional<Choice> TableChoices::cheapest(const SliceLimit& limit, const Prices& prices) const {
  std::optional<Choice> best;
  const auto take = [&](const std::optional<Choice>& choice) {
    if (choice && (!best || prices.of(*choice) < prices.of(*best))) best = choice;
  };
  take(table_parallel(limit));
  take(row_parallel(limit));
  if (replicated_ <= limit.seconds) take(replicated());
  return best;
}

std::vector<TableChoices> table_choices(const LoadModel& model, const EmbeddingPlanOptions& options, bool may_replicate,
                                        bool may_shard) {
  std::vector<TableChoices> choices;
  choices.reserve(model.tables().size());
  for (size_t t = 0; t < model.tables().size(); ++t) choices.emplace_back(model, t, options, may_replicate, may_shard);
  return choices;
}

}  // namespace shardwise::detail
