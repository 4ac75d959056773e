#include "ops/embedding/row_optimizer.h"

#include <c10/core/UndefinedTensorImpl.h>
#include <fmt/format.h>

#include <cmath>
#include <mutex>
#include <unordered_map>

namespace shardwise {
namespace {

constexpr const char* kFuseOptimizer = "fuse_optimizer";

void check_table(const at::Tensor& table) {
  TORCH_CHECK_TYPE(is_dtensor(table), fmt::format("[{}] got a torch.Tensor of shape [{}] as the table. Wrap it with "
                                                  "distribute_tensor(x, mesh, [Replicate()]).",
                                                  kFuseOptimizer, fmt::join(table.sizes(), ", ")));
  TORCH_CHECK_VALUE(table.dim() == 2, fmt::format("[{}] the table of shape [{}] has {} dims. Give [rows, columns].",
                                                  kFuseOptimizer, fmt::join(table.sizes(), ", "), table.dim()));
  TORCH_CHECK_TYPE(at::isFloatingType(table.scalar_type()),
                   fmt::format("[{}] the table is {}. Give float32, float64, bfloat16 or float16.", kFuseOptimizer,
                               c10::toString(table.scalar_type())));
  TORCH_CHECK_VALUE(!spec_of(table)->layout().is_partial(),
                    fmt::format("[{}] the table is laid out as {}: its rows are nowhere whole. Reduce it first with "
                                "redistribute().",
                                kFuseOptimizer, to_string(spec_of(table)->placements())));
}

void check_options(const RowOptimizer::Options& options) {
  const auto check = [](bool is_right, const char* name, double value, const char* rule) {
    TORCH_CHECK_VALUE(is_right, fmt::format("[{}] {} is {}. Use {}.", kFuseOptimizer, name, value, rule));
  };
  check(options.lr >= 0, "lr", options.lr, "a number of 0 or more");
  check(options.eps >= 0, "eps", options.eps, "a number of 0 or more");
  check(options.initial_accumulator >= 0, "initial_accumulator_value", options.initial_accumulator,
        "a number of 0 or more");
  if (options.kind != RowOptimizer::Kind::kAdam) return;
  check(options.beta1 >= 0 && options.beta1 < 1, "beta1", options.beta1, "one in [0, 1)");
  check(options.beta2 >= 0 && options.beta2 < 1, "beta2", options.beta2, "one in [0, 1)");
}

/// A tensor of `value` laid out as the table, or as its rows.
at::Tensor state_of(const at::Tensor& table, bool per_row, double value) {
  const Spec& spec = *spec_of(table);
  const auto dtype = table.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  if (!per_row) return full(spec.sizes(), value, spec.mesh(), spec.placements().vec(), dtype);
  Placements placements = spec.placements().vec();
  for (Placement& placement : placements) {
    if (placement.is_shard(1)) placement = Placement::replicate();
    TORCH_CHECK_NOT_IMPLEMENTED(
        !placement.in_pieces(),
        fmt::format("[{}] row-wise Adagrad keeps one number per row, and {} may split a row. Use Adagrad, or shard by "
                    "Shard(0) or Shard(1).",
                    kFuseOptimizer, to_string(placement)));
  }
  return full({spec.sizes()[0]}, value, spec.mesh(), std::move(placements), dtype);
}

/// The tables with a fused optimizer. An entry counts while its table and its optimizer live.
struct Registry {
  using Table = c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>;
  struct Entry {
    Table table;
    std::weak_ptr<RowOptimizer> optimizer;
    bool is_over() const { return table.expired() || optimizer.expired(); }
  };
  std::mutex mutex;
  std::unordered_map<c10::TensorImpl*, Entry> entries;

  static Registry& get() {
    static auto* registry = new Registry;  // outlives tables that are freed at exit
    return *registry;
  }
};

}  // namespace

RowOptimizer::RowOptimizer(const at::Tensor& table, const Options& options) : options_(options) {
  check_table(table);
  check_options(options);
  table_ = spec_of(table);
  if (options.kind == Kind::kSgd) return;
  const bool is_adam = options.kind == Kind::kAdam;
  const double initial = is_adam ? 0 : options.initial_accumulator;
  for (int i = 0; i < (is_adam ? 2 : 1); ++i)
    state_.push_back(state_of(table, options.kind == Kind::kRowWiseAdagrad, initial));
}

void RowOptimizer::set_options(const Options& options) {
  check_options(options);
  options_ = {options_.kind, options.lr, options.eps, options.beta1, options.beta2, options_.initial_accumulator};
}

void RowOptimizer::begin_step() {
  if (before_step_) before_step_();
  ++n_steps_;
}

kernels::RowUpdate RowOptimizer::update() const {
  kernels::RowUpdate update{options_.kind, options_.lr, options_.eps, options_.beta1, options_.beta2};
  if (options_.kind == Kind::kAdam)
    update.lr *= std::sqrt(1 - std::pow(options_.beta2, n_steps_)) / (1 - std::pow(options_.beta1, n_steps_));
  return update;
}

void RowOptimizer::update_rows(const at::Tensor& piece, size_t box, const RowGrads& grads, const IdGroups& groups,
                               const at::Tensor& mean_squares) const {
  c10::SmallVector<at::Tensor, 2> state;
  for (const at::Tensor& each : state_) state.push_back(maybe_dtensor(each)->shards()[box]);
  shardwise::update_rows(piece, state, update(), grads, groups, mean_squares);
}

namespace {

void check_same(const at::Tensor& table, const RowOptimizer& optimizer) {
  TORCH_CHECK_VALUE(
      is_dtensor(table) && spec_of(table) == optimizer.table(),
      fmt::format("[{}] the table is {}, the optimizer was made for {}. Make a new one of the table as it is.",
                  kFuseOptimizer, is_dtensor(table) ? to_string(*spec_of(table)) : "a torch.Tensor",
                  to_string(*optimizer.table())));
}

}  // namespace

void fuse_optimizer(const at::Tensor& table, const std::shared_ptr<RowOptimizer>& optimizer) {
  check_table(table);
  check_same(table, *optimizer);
  Registry& registry = Registry::get();
  const std::lock_guard lock(registry.mutex);
  std::erase_if(registry.entries, [](const auto& entry) { return entry.second.is_over(); });
  const auto [entry, is_new] = registry.entries.try_emplace(
      table.unsafeGetTensorImpl(), Registry::Entry{Registry::Table(table.getIntrusivePtr()), optimizer});
  TORCH_CHECK_VALUE(is_new || entry->second.optimizer.lock() == optimizer,
                    fmt::format("[{}] the table of shape [{}] has a fused optimizer already. Close that one first.",
                                kFuseOptimizer, fmt::join(table.sizes(), ", ")));
}

void release_optimizer(const at::Tensor& table, const RowOptimizer& optimizer) {
  Registry& registry = Registry::get();
  const std::lock_guard lock(registry.mutex);
  const auto found = registry.entries.find(table.unsafeGetTensorImpl());
  if (found != registry.entries.end() && found->second.optimizer.lock().get() == &optimizer)
    registry.entries.erase(found);
}

std::shared_ptr<RowOptimizer> fused_optimizer(const at::Tensor& table) {
  std::shared_ptr<RowOptimizer> optimizer;
  {
    Registry& registry = Registry::get();
    const std::lock_guard lock(registry.mutex);
    const auto found = registry.entries.find(table.unsafeGetTensorImpl());
    if (found != registry.entries.end() && !found->second.table.expired()) optimizer = found->second.optimizer.lock();
  }
  if (optimizer) check_same(table, *optimizer);
  return optimizer;
}

}  // namespace shardwise
