#include "ops/embedding/row_optimizer.h"

#include "ops/embedding/split_rows.h"
#include "runtime/comm/tracing.h"
#include "runtime/redistribute/leaf_hooks.h"
#include "runtime/tensor/mapped_memory.h"
#include "text/check.h"

#include <c10/core/UndefinedTensorImpl.h>

#include <array>
#include <cmath>
#include <mutex>
#include <unordered_map>

namespace shardwise {
namespace {

constexpr const char* kFuseOptimizer = "fuse_optimizer";

void check_may_train(const at::Tensor& table) {
  check_table(kFuseOptimizer, table);
  const Layout& layout = spec_of(table)->layout();
  SW_CHECK_NOT_IMPLEMENTED(
      layout.has_one_box_each() || layout.enumerated(),
      "[{}] the table is laid out as {}: lookups read a copy in another layout, whose rows the optimizer cannot "
      "update. Place the table as Shard, or, if it is a RaggedShard, on a mesh of one dim.",
      kFuseOptimizer, to_string(layout.placements()));
}

void check_options(const RowOptimizer::Options& options) {
  const auto check = [](bool is_right, const char* name, double value, const char* rule) {
    SW_CHECK_VALUE(is_right, "[{}] {} is {}. Use {}.", kFuseOptimizer, name, value, rule);
  };
  check(options.lr >= 0, "lr", options.lr, "a number of 0 or more");
  check(options.eps >= 0, "eps", options.eps, "a number of 0 or more");
  check(options.initial_accumulator >= 0, "initial_accumulator_value", options.initial_accumulator,
        "a number of 0 or more");
  check(options.weight_decay >= 0, "weight_decay", options.weight_decay, "a number of 0 or more");
  if (!kernels::has_moments(options.method)) return;
  check(options.beta1 >= 0 && options.beta1 < 1, "beta1", options.beta1, "one in [0, 1)");
  check(options.beta2 >= 0 && options.beta2 < 1, "beta2", options.beta2, "one in [0, 1)");
}

/// A tensor of `value`, which lies in files if the table does.
at::Tensor full_beside(const at::Tensor& table, c10::IntArrayRef sizes, double value, Placements placements,
                       at::ScalarType dtype) {
  const MeshPtr& mesh = spec_of(table)->mesh();
  std::optional<std::string> folder;
  for (const at::Tensor& piece : maybe_dtensor(table)->shards())
    if (!folder) folder = mapped_folder(piece);
  if (!folder) return full(sizes, value, mesh, std::move(placements), dtype);
  const SpecPtr spec = Spec::intern(mesh, sizes, std::move(placements), row_major_strides(sizes), dtype);
  Shards parts;
  for (const Box& box : spec->boxes()) {
    parts.push_back(mapped_zeros(*folder, box.sizes, dtype));
    if (value != 0) parts.back().fill_(value);
  }
  return wrap(spec, std::move(parts));
}

/// A tensor of `value` laid out as the table, or as its rows.
at::Tensor state_of(const at::Tensor& table, bool per_row, double value) {
  const Spec& spec = *spec_of(table);
  const auto dtype = table.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  if (!per_row) return full_beside(table, spec.sizes(), value, spec.placements().vec(), dtype);
  return full_beside(table, {spec.sizes()[0]}, value, placements_of_rows(spec), dtype);
}

/// The part of `state` for a box of the table; undefined if the state is kept with other boxes.
at::Tensor state_of_box(const at::Tensor& state, const Spec& table, size_t box) {
  const Shards& shards = maybe_dtensor(state)->shards();
  if (state.dim() == 2 || table.layout().has_one_box_each()) return shards[box];
  const auto& kept = spec_of(state)->boxes();
  for (size_t i = 0; i < kept.size(); ++i)
    if (kept[i].interval(0) == table.boxes()[box].interval(0)) return shards[i];
  return {};
}

/// The tables with a fused optimizer. An entry is valid while its table and its optimizer live.
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
  check_may_train(table);
  check_options(options);
  table_ = spec_of(table);
  if (options.method == Method::kSgd) return;
  const bool is_row_wise = kernels::is_row_wise(options.method);
  if (kernels::has_moments(options.method)) {
    state_ = {state_of(table, false, 0), state_of(table, is_row_wise, 0)};
  } else {
    state_ = {state_of(table, is_row_wise, options.initial_accumulator)};
  }
}

const char* to_string(RowOptimizer::Method method) {
  static constexpr std::array kNames{"SGD",           "Adagrad", "row-wise Adagrad", "Adam",
                                     "row-wise Adam", "LAMB",    "row-wise LAMB"};
  return kNames.at(static_cast<size_t>(method));
}

void RowOptimizer::set_options(const Options& options) {
  check_options(options);
  const Options before = options_;
  options_ = options;
  options_.method = before.method;
  options_.initial_accumulator = before.initial_accumulator;
}

void RowOptimizer::begin_step() {
  if (before_step_) before_step_();
  ++n_steps_;
}

kernels::RowUpdate RowOptimizer::update(size_t box) const {
  const Options& o = options_;
  kernels::RowUpdate update{o.method, o.lr, o.eps, o.beta1, o.beta2};
  const double second_bias = std::sqrt(1 - std::pow(o.beta2, n_steps_));
  if (kernels::has_moments(o.method)) update.correction = second_bias / (1 - std::pow(o.beta1, n_steps_));
  if (kernels::is_lamb(o.method)) update.eps *= second_bias;  // the paper adds eps to the bias-corrected root
  (o.is_decoupled || kernels::is_lamb(o.method) ? update.decay : update.l2) = o.weight_decay;
  const Dims& at = table_->boxes()[box].offsets;
  update.rounding = {o.rounds_at_random, o.seed, static_cast<uint32_t>(n_steps_), at[0], at[1]};
  return update;
}

UpdatedRows RowOptimizer::updated_rows(const at::Tensor& piece, size_t box) const {
  UpdatedRows updated{piece, {}, update(box)};
  for (const at::Tensor& each : state_) updated.state.push_back(state_of_box(each, *table_, box));
  return updated;
}

void RowOptimizer::write_back() const {
  for (const auto& write_back : write_back_) write_back();
}

namespace {

void check_same(const at::Tensor& table, const RowOptimizer& optimizer) {
  SW_CHECK_VALUE(is_dtensor(table) && spec_of(table) == optimizer.table(),
                 "[{}] the table is {}, but the optimizer was made for {}. Make a new optimizer for this table.",
                 kFuseOptimizer, is_dtensor(table) ? to_string(*spec_of(table)) : "a torch.Tensor",
                 to_string(*optimizer.table()));
}

/// The optimizer fused with `table`, or null.
std::shared_ptr<RowOptimizer> registered(const at::TensorBase& table) {
  Registry& registry = Registry::get();
  const std::lock_guard lock(registry.mutex);
  const auto found = registry.entries.find(table.unsafeGetTensorImpl());
  const bool is_known = found != registry.entries.end() && !found->second.table.expired();
  return is_known ? found->second.optimizer.lock() : nullptr;
}

}  // namespace

void fuse_optimizer(const at::Tensor& table, const std::shared_ptr<RowOptimizer>& optimizer) {
  check_may_train(table);
  check_same(table, *optimizer);
  Registry& registry = Registry::get();
  std::vector<Registry::Entry> over;  // freed after the lock: freeing a table's mesh may wait for the GIL
  const std::lock_guard lock(registry.mutex);
  std::erase_if(registry.entries, [&](auto& entry) {
    const bool is_over = entry.second.is_over();
    if (is_over) over.push_back(std::move(entry.second));
    return is_over;
  });
  const auto [entry, is_new] = registry.entries.try_emplace(
      table.unsafeGetTensorImpl(), Registry::Entry{Registry::Table(table.getIntrusivePtr()), optimizer});
  SW_CHECK_VALUE(is_new || entry->second.optimizer.lock() == optimizer,
                 "[{}] the table of shape [{}] has a fused optimizer already. Close that one first.", kFuseOptimizer,
                 fmt::join(table.sizes(), ", "));
}

namespace {

/// A tracer's tensor stands for a table with `optimizer`.
void fuse_traced(const at::Tensor& traced, const std::shared_ptr<void>& optimizer) {
  Registry& registry = Registry::get();
  const std::lock_guard lock(registry.mutex);
  registry.entries.insert_or_assign(
      traced.unsafeGetTensorImpl(),
      Registry::Entry{Registry::Table(traced.getIntrusivePtr()), std::static_pointer_cast<RowOptimizer>(optimizer)});
}

}  // namespace

void carry_optimizers() {
  leaf_hooks() = {[](const at::TensorBase& leaf) -> std::shared_ptr<void> { return registered(leaf); }, &fuse_traced};
}

void release_optimizer(const at::Tensor& table, const RowOptimizer& optimizer) {
  Registry& registry = Registry::get();
  const std::lock_guard lock(registry.mutex);
  const auto found = registry.entries.find(table.unsafeGetTensorImpl());
  if (found != registry.entries.end() && found->second.optimizer.lock().get() == &optimizer)
    registry.entries.erase(found);
}

void check_no_optimizer_traced(const at::Tensor& table) {
  if (registered(table)) check_not_traced("lookup in a table with a fused optimizer");
}

std::shared_ptr<RowOptimizer> fused_optimizer(const at::Tensor& table) {
  std::shared_ptr<RowOptimizer> optimizer = registered(table);
  if (optimizer) check_same(table, *optimizer);
  return optimizer;
}

}  // namespace shardwise
