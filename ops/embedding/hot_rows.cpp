#include "ops/embedding/hot_rows.h"

#include "runtime/tensor/below_autograd.h"
#include "runtime/tensor/dtensor_impl.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>

#include <algorithm>
#include <utility>

namespace shardwise {
namespace {

at::Tensor numbers(c10::ArrayRef<int64_t> values) { return at::tensor(values, at::kLong); }

c10::ArrayRef<int64_t> numbers_in(const at::Tensor& tensor) {
  return {tensor.const_data_ptr<int64_t>(), static_cast<size_t>(tensor.numel())};
}

/// into[rows[i]] = values[i].
void put_rows(const at::Tensor& into, const at::Tensor& rows, const at::Tensor& values) {
  c10::List<std::optional<at::Tensor>> index;
  index.push_back(rows.to(into.device()));
  into.index_put_(index, values.to(into.device()));
}

}  // namespace

int64_t HotRows::Tier::row_bytes() const {
  return slow.size(0) == 0 ? 0 : static_cast<int64_t>(slow.nbytes()) / slow.size(0);
}

HotRows::HotRows(at::Tensor slow, int64_t n_slots, c10::Device device)
    : device_(device), slots_(std::min(n_slots, slow.size(0))) {
  tiers_.push_back(new_tier(std::move(slow)));
  is_changed_.assign(static_cast<size_t>(slots_.n_slots()), false);
  counts_.slots = slots_.n_slots();
}

HotRows::Tier HotRows::new_tier(at::Tensor slow) const {
  std::vector<int64_t> sizes = slow.sizes().vec();
  sizes[0] = slots_.n_slots();
  at::Tensor hot = at::empty(sizes, slow.options().device(device_));
  return {std::move(slow), std::move(hot)};
}

HotRows::Counts HotRows::counts() const {
  const std::lock_guard lock(mutex_);
  Counts counts = counts_;
  counts.value_bytes = static_cast<int64_t>(tiers_[0].hot.nbytes());
  for (size_t i = 1; i < tiers_.size(); ++i) counts.state_bytes += static_cast<int64_t>(tiers_[i].hot.nbytes());
  return counts;
}

int64_t HotRows::row_bytes() const {
  int64_t n_bytes = 0;
  for (const Tier& tier : tiers_) n_bytes += tier.row_bytes();
  return n_bytes;
}

void HotRows::read(c10::ArrayRef<int64_t> rows, c10::ArrayRef<int64_t> slots) {
  if (rows.empty()) return;
  const at::Tensor from = numbers(rows), to = numbers(slots);
  for (const Tier& tier : tiers_) put_rows(tier.hot, to, tier.slow.index_select(0, from));
  counts_.bytes_read += static_cast<int64_t>(rows.size()) * row_bytes();
}

void HotRows::write(std::vector<std::pair<int64_t, int64_t>> rows_and_slots) {
  if (rows_and_slots.empty()) return;
  std::ranges::sort(rows_and_slots);  // sorted, so that neighbouring rows of the file are written together
  std::vector<int64_t> rows, slots;
  for (const auto& [row, slot] : rows_and_slots) {
    rows.push_back(row);
    slots.push_back(slot);
    is_changed_[static_cast<size_t>(slot)] = false;
  }
  const at::Tensor from = numbers(slots).to(device_), to = numbers(rows);
  for (const Tier& tier : tiers_) put_rows(tier.slow, to, tier.hot.index_select(0, from));
  counts_.bytes_written += static_cast<int64_t>(rows.size()) * row_bytes();
}

void HotRows::write_changed() {
  std::vector<std::pair<int64_t, int64_t>> changed;
  for (int64_t slot = 0; slot < slots_.n_used(); ++slot)
    if (is_changed_[static_cast<size_t>(slot)]) changed.emplace_back(slots_.row_of(slot), slot);
  write(std::move(changed));
}

void HotRows::refresh() {
  if (!std::exchange(is_stale_, false)) return;
  std::vector<int64_t> rows, slots;
  for (int64_t slot = 0; slot < slots_.n_used(); ++slot) {
    rows.push_back(slots_.row_of(slot));
    slots.push_back(slot);
  }
  read(rows, slots);
}

HotRows::Result HotRows::hold(const at::Tensor& ids) {
  const BelowAutograd guard;
  const std::lock_guard lock(mutex_);
  const IdGroups groups = group_ids(ids.cpu(), 0, tiers_[0].slow.size(0), /*skipped=*/-1, /*with_group_of=*/true);
  Result result{nullptr, groups.n(), slots_.n_held()};
  refresh();
  auto held = slots_.hold(numbers_in(groups.rows));
  if (!held) return result;
  std::vector<std::pair<int64_t, int64_t>> left;
  std::vector<int64_t> rows, slots;
  for (const HotSlots::Entry& entry : held->entered) {
    rows.push_back(entry.row);
    slots.push_back(entry.slot);
    if (entry.left < 0) continue;
    ++counts_.evictions;
    if (is_changed_[static_cast<size_t>(entry.slot)]) left.emplace_back(entry.left, entry.slot);
  }
  write(std::move(left));
  read(rows, slots);
  const auto n_misses = static_cast<int64_t>(rows.size());
  counts_.misses += n_misses;
  counts_.hits += groups.n() - n_misses;
  at::Tensor of_ids = numbers(held->slots).index_select(0, groups.group_of).to(device_);
  result.hold = std::make_shared<Hold>(shared_from_this(), std::move(held->slots), std::move(of_ids));
  return result;
}

void HotRows::Hold::release() {
  const std::lock_guard lock(rows_->mutex_);
  rows_->slots_.release(std::exchange(held_, {}));
}

void HotRows::catch_up() {
  const BelowAutograd guard;
  const std::lock_guard lock(mutex_);
  refresh();
}

/// `state`: this piece's parts of the optimizer's state tensors.
void HotRows::attach(RowOptimizer& optimizer, c10::ArrayRef<at::Tensor> state) {
  const auto is_same = [](const at::Tensor& one, const at::Tensor& other) { return one.is_same(other); };
  if (std::ranges::equal(state_, optimizer.state(), is_same)) return;
  write_changed();
  tiers_.resize(1);
  before_writes_.clear();
  state_ = optimizer.state();
  const std::weak_ptr<HotRows> weak = weak_from_this();
  for (size_t i = 0; i < state_.size(); ++i) {
    tiers_.push_back(new_tier(state[i]));
    before_writes_.push_back(maybe_dtensor(state_[i])->memory()->before_writes([weak] {
      if (const auto rows = weak.lock()) rows->expect_write();
    }));
  }
  optimizer.add_write_back([weak] {
    if (const auto rows = weak.lock()) rows->write_back();
  });
  is_stale_ = true;
}

void HotRows::update(RowOptimizer& optimizer, const UpdatedRows& all, const RowGrads& grads, const IdGroups& groups) {
  if (groups.n() == 0) return;
  const BelowAutograd guard;
  const std::lock_guard lock(mutex_);
  attach(optimizer, all.state);
  refresh();
  const at::Tensor rows = groups.rows.cpu();
  UpdatedRows here{{}, {}, all.update};
  if (const auto slots = slots_.find(numbers_in(rows))) {
    here.rows = tiers_[0].hot;
    for (size_t i = 1; i < tiers_.size(); ++i) here.state.push_back(tiers_[i].hot);
    // Slots need not ascend, because this one piece has all rows.
    update_rows(here, grads, {numbers(*slots).to(device_), groups.starts, groups.order, {}});
    for (const int64_t slot : *slots) is_changed_[static_cast<size_t>(slot)] = true;
    return;
  }
  write_changed();
  std::vector<at::Tensor> copies;
  for (const Tier& tier : tiers_) copies.push_back(tier.slow.index_select(0, rows).to(device_));
  here.rows = copies[0];
  here.state.append(copies.begin() + 1, copies.end());
  update_rows(here, grads, {at::arange(rows.numel(), groups.rows.options()), groups.starts, groups.order, {}});
  for (size_t i = 0; i < tiers_.size(); ++i) put_rows(tiers_[i].slow, rows, copies[i]);
  counts_.bytes_read += rows.numel() * row_bytes();
  counts_.bytes_written += rows.numel() * row_bytes();
  is_stale_ = true;
}

void HotRows::write_back() {
  const BelowAutograd guard;
  const std::lock_guard lock(mutex_);
  write_changed();
}

void HotRows::expect_write() {
  if (n_own_writes_ > 0) return;
  const BelowAutograd guard;
  const std::lock_guard lock(mutex_);
  write_changed();
  is_stale_ = true;
}

HotRows::OwnWrite::OwnWrite(std::vector<HotRowsPtr> rows) : rows_(std::move(rows)) {
  for (const HotRowsPtr& each : rows_)
    if (each) ++each->n_own_writes_;
}

HotRows::OwnWrite::~OwnWrite() {
  for (const HotRowsPtr& each : rows_)
    if (each) --each->n_own_writes_;
}

}  // namespace shardwise
