#include "wrappers/embedding_plan/load_model.h"

#include "plans/traffic.h"

namespace shardwise::detail {
namespace {

constexpr double kIdBytes = 8;
constexpr double kExchanges = 3;  // ids, vectors, gradients

}  // namespace

LoadModel::LoadModel(const std::vector<TableConfig>& tables, int64_t n_ranks, const EmbeddingPlanOptions& options)
    : tables_(tables),
      n_ranks_(n_ranks),
      state_per_element_(options.state_bytes_per_element),
      state_per_row_(options.state_bytes_per_row),
      memory_seconds_(1 / (options.machine.memory_gb_per_s * 1e9)),
      row_seconds_(options.machine.ns_per_row * 1e-9),
      segment_seconds_(options.machine.ns_per_segment * 1e-9) {
  const std::vector<int64_t> shape = options.mesh_shape.empty() ? std::vector<int64_t>{n_ranks} : options.mesh_shape;
  int64_t n_inner = n_ranks;  // ranks that agree on the mesh dims before m
  for (size_t m = 0; m < shape.size(); ++m) {
    const Link& link = link_along(options.links, m);
    const int64_t n_agreeing = n_inner / shape[m], n_peers = n_inner - n_agreeing;
    n_inner = n_agreeing;
    if (n_peers == 0) continue;
    const double of_peers = static_cast<double>(n_peers) / static_cast<double>(n_ranks - 1);
    wire_seconds_ += of_peers * transfer_seconds(link, 0, 1);
    exchange_latency_ += kExchanges * transfer_seconds(link, n_peers, 0);
    const double ring = 2 * static_cast<double>(shape[m] - 1) / static_cast<double>(shape[m]);
    all_reduce_share_ += ring;
    all_reduce_seconds_ += ring * transfer_seconds(link, 0, 1);
    all_reduce_latency_ += transfer_seconds(link, n_peers + 2 * (shape[m] - 1), 0);
  }
  for (const TableConfig& table : tables) {
    const double n_ids = static_cast<double>(options.batch_per_rank) * table.ids_per_sample;
    const int64_t bytes = element_bytes(table.dtype);
    const auto of_ranks = static_cast<double>(n_ranks);
    Ids ids{bytes, {table.n_rows, table.skew, n_ids}, {table.n_rows, table.skew, n_ids * of_ranks}, false};
    ids.are_reduced = is_reduced(of_ranks * ids.of_rank.all(), ids.of_all.all());
    ids_.push_back(std::move(ids));
    const auto row_bytes = static_cast<double>(table.n_columns * bytes);
    client_seconds_ += n_ids * (row_seconds_ + 3 * row_bytes * memory_seconds_);
  }
}

double LoadModel::lookups(size_t table, Interval rows) const {
  return static_cast<double>(n_ranks_) * ids_[table].of_rank.within(rows);
}

double LoadModel::served_bytes(size_t table, Interval rows, int64_t n_columns) const {
  const auto n_peers = static_cast<double>(n_ranks_ - 1);
  const auto row_bytes = static_cast<double>(n_columns * ids_[table].element_bytes);
  return n_peers * (ids_[table].of_rank.within(rows) * (kIdBytes + 2 * row_bytes) + kIdBytes);
}

LoadModel::SliceSeconds LoadModel::slice_seconds(size_t table, Interval rows) const {
  const Ids& ids = ids_[table];
  const auto n_peers = static_cast<double>(n_ranks_ - 1);
  const double asked = ids.of_rank.within(rows), updated = ids.of_all.within(rows);
  const double looked_up = static_cast<double>(n_ranks_) * asked;
  const auto bytes = static_cast<double>(ids.element_bytes);
  const double touched = 3 * looked_up * bytes + 2 * updated * (bytes + static_cast<double>(state_per_element_));
  const double state = 2 * updated * static_cast<double>(state_per_row_);
  return {(looked_up + updated) * row_seconds_ + state * memory_seconds_ + n_peers * asked * kIdBytes * wire_seconds_ +
              seconds_of_empty_slice(),
          touched * memory_seconds_ + n_peers * asked * 2 * bytes * wire_seconds_};
}

double LoadModel::seconds_of_empty_slice() const {
  return static_cast<double>(n_ranks_ - 1) * kIdBytes * wire_seconds_ +
         static_cast<double>(n_ranks_) * segment_seconds_;
}

double LoadModel::replicated_lookups(size_t table) const { return ids_[table].of_rank.all(); }

std::pair<double, double> LoadModel::told_and_reduced(size_t table) const {
  const Ids& ids = ids_[table];
  const auto row_bytes = static_cast<double>(weight_bytes(table, 1, tables_[table].n_columns));
  const double told = static_cast<double>(n_ranks_ - 1) * ids.of_rank.all();
  if (ids.are_reduced) return {told * kIdBytes, ids.of_all.all() * row_bytes};
  return {told * (kIdBytes + row_bytes), 0};
}

double LoadModel::replicated_bytes(size_t table) const {
  const auto [told, reduced] = told_and_reduced(table);
  return told + all_reduce_share_ * reduced;
}

double LoadModel::replicated_seconds(size_t table) const {
  const TableConfig& config = tables_[table];
  const Ids& ids = ids_[table];
  const double own = ids.of_rank.all(), updated = ids.of_all.all();
  const double summed = ids.are_reduced ? updated : static_cast<double>(n_ranks_) * own;
  const auto row_bytes = static_cast<double>(weight_bytes(table, 1, config.n_columns));
  const double touched = (3 * own + summed + 2 * updated) * row_bytes +
                         2 * updated * static_cast<double>(state_bytes(1, config.n_columns));
  const auto [told, reduced] = told_and_reduced(table);
  return (own + updated) * row_seconds_ + segment_seconds_ + touched * memory_seconds_ + told * wire_seconds_ +
         reduced * all_reduce_seconds_;
}

int64_t LoadModel::weight_bytes(size_t table, int64_t n_rows, int64_t n_columns) const {
  return n_rows * n_columns * ids_[table].element_bytes;
}

int64_t LoadModel::state_bytes(int64_t n_rows, int64_t n_columns) const {
  return n_rows * (n_columns * state_per_element_ + state_per_row_);
}

}  // namespace shardwise::detail
