#include "wrappers/fsdp/gather_schedule.h"

#include "text/check.h"

#include <ATen/core/grad_mode.h>
#include <fmt/ranges.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/graph_task.h>

#include <algorithm>

namespace shardwise {
namespace {

bool is_backward_running() { return torch::autograd::get_current_graph_task_id() != -1; }

/// Up to so many bytes of whole parameters, an exchange costs less than its latency, and the memory of groups ahead does not matter.
constexpr size_t kTogetherBytes = PackedMessages::kLargeBytes;

/// Starts to gather the first of the groups [next, end), and with it those that follow while all of them have kTogetherBytes at most.
template <class Iterator>
void start_gathers(Iterator next, Iterator end) {
  if (next == end) return;
  if ((*next)->group()->is_stale()) (*next)->group()->release();
  std::vector<ParameterGroup*> together;
  size_t n_bytes = 0;
  for (; next != end; ++next) {
    ParameterGroup* const group = (*next)->group().get();
    if (!group->awaits_gather() || std::ranges::count(together, group) > 0) break;
    n_bytes += group->n_bytes();
    if (!together.empty() && (n_bytes > kTogetherBytes || !group->can_gather_with(*together[0]))) break;
    together.push_back(group);
  }
  if (!together.empty()) ParameterGroup::start_gathers(together);
}

}  // namespace

void GroupSchedule::set_reshard_after_forward(const ReshardAfterForward& given, const DeviceMesh& mesh) {
  is_automatic_ = !given;
  n_keeping_ = 0;
  const auto* const n_ranks = given ? std::get_if<int64_t>(&*given) : nullptr;
  reshards_after_forward_ = n_ranks ? *n_ranks > 1 : given && std::get<bool>(*given);
  if (!n_ranks) return;
  const int64_t n_sharding = mesh.grid().shape.back();
  std::vector<int64_t> fitting;
  for (int64_t n = 1; n <= n_sharding; ++n)
    if (n_sharding % n == 0) fitting.push_back(n);
  SW_CHECK_VALUE(std::ranges::count(fitting, *n_ranks) > 0,
                 "[fully_shard] reshard_after_forward={}: the {} ranks over which parameters are sharded on {} are no "
                 "multiple of it. Give one of [{}], or True or False.",
                 *n_ranks, n_sharding, to_string(mesh), fmt::join(fitting, ", "));
  if (1 < *n_ranks && *n_ranks < n_sharding) n_keeping_ = *n_ranks;
}

void GatherSchedule::add(const std::shared_ptr<GroupSchedule>& unit, ParameterGroupPtr group) {
  unit->group_ = std::move(group);
  unit->schedule_ = weak_from_this();
  units_.push_back(unit);
  listen(unit->group_);
}

void GatherSchedule::take(GatherSchedule& other) {
  if (&other == this) return;
  for (const auto& unit : std::exchange(other.units_, {})) {
    if (unit->is_automatic_) unit->reshards_after_forward_ = true;
    add(unit, unit->group_);
  }
  other.taken_by_ = shared_from_this();
}

void GatherSchedule::replace(GroupSchedule& unit, ParameterGroupPtr group) {
  unit.group_ = std::move(group);
  entered_.clear();
  left_.clear();
  listen(unit.group_);
}

void GatherSchedule::listen(const ParameterGroupPtr& group) {
  group->on_first_gradient([self = weak_from_this()] {
    const auto schedule = self.lock();
    if (!schedule) return;
    schedule->begin_backward();  // a kept tensor may bypass the outputs' hooks
    schedule->finish_reduction();
    schedule->gather_ahead_in_backward();
  });
  group->before_gradients([self = weak_from_this()] {
    if (const auto schedule = self.lock()) schedule->drop_failed_backward();
  });
}

void GatherSchedule::enter_forward(GroupSchedule& unit) {
  ParameterGroup& group = *unit.group_;
  if (is_backward_running()) {
    group.gather();
    return;
  }
  if (n_open_ == 0) {
    if (is_in_backward_) reset();  // a backward that failed
    entered_before_ = std::exchange(entered_, {});
    if (at::GradMode::is_enabled() && n_awaited_++ == 0)
      for (const auto& each : units_) each->has_run_ = false;
  }
  if (group.is_stale()) group.release();
  group.follow_requires_grad();
  group.gather();
  ++n_open_;
  ++unit.n_forwards_;
  entered_.push_back(&unit);
  gather_ahead_in_forward(unit);
}

void GatherSchedule::gather_ahead_in_forward(const GroupSchedule& unit) {
  for (const auto& next : unit.ahead_in_forward)
    if (const auto known = next.lock()) start_gathers(&known, &known + 1);
  const auto n = std::ssize(entered_);
  if (unit.ahead_in_forward.empty() && n <= std::ssize(entered_before_) &&
      std::equal(entered_.begin(), entered_.end(), entered_before_.begin()))
    start_gathers(entered_before_.begin() + n, entered_before_.end());
}

void GatherSchedule::leave_forward(GroupSchedule& unit, int64_t module, bool releases, bool has_backward) {
  if (is_backward_running()) return;
  if (n_open_ > 0) --n_open_;
  if (at::GradMode::is_enabled()) {
    left_.push_back(&unit);
    unit.has_run_ = true;
  }
  if (unit.n_forwards_ > 0) --unit.n_forwards_;
  if (unit.n_forwards_ == 0 && (unit.reshards_after_forward_ || !has_backward)) unit.group_->put_back();
  if (releases) unit.ran_.insert(module);
  const auto end = [&](GroupSchedule& each) {
    each.ran_.clear();
    reshard_after_forward(each);
  };
  if (std::ssize(unit.ran_) >= unit.n_modules) end(unit);
  if (&unit == units_[0].get() && unit.n_forwards_ == 0)
    for (const auto& each : units_)
      if (!each->ran_.empty()) end(*each);
  if (n_open_ > 0) return;
  for (const auto& each : units_)  // gathered ahead for modules that did not run
    if (each->group_->is_on_its_way()) each->group_->release();
}

void GatherSchedule::reshard_after_forward(const GroupSchedule& unit) {
  if (unit.n_forwards_ > 0 || !unit.reshards_after_forward_) return;
  if (unit.n_keeping_ > 0)
    unit.group_->release_to(unit.n_keeping_);
  else
    unit.group_->release();
}

bool GatherSchedule::may_be_ignored(const GroupSchedule& unit) {
  // A gather for the backward is collective. So if there is one, no rank's loss may ignore the outputs.
  return unit.fills_unused && !(unit.reshards_after_forward_ && unit.gathers_in_backward);
}

void GatherSchedule::begin_backward() {
  drop_failed_backward();
  if (std::exchange(is_in_backward_, true)) return;
  const auto token = std::make_shared<bool>();
  backward_ = token;
  torch::autograd::Engine::get_default_engine().queue_callback(
      [self = shared_from_this(), token] { self->end_backward(); });
  for (const auto& unit : units_) {  // even if this rank's loss ignores the outputs
    if (!unit->fills_unused || !unit->has_run_) continue;
    unit->is_unsettled_ = true;
    if (may_be_ignored(*unit) && unit->gathers_in_backward)
      unit->group_->start_gather();  // an earlier backward may have released it
  }
}

int64_t GatherSchedule::n_ended() {
  drop_failed_backward();
  return n_ended_;
}

void GatherSchedule::before_backward(GroupSchedule& unit) {
  begin_backward();
  unit.group_->follow_requires_grad();  // a forward in between may have frozen them: without an adapter, for instance
  if (unit.gathers_in_backward) unit.group_->gather();
  ++unit.n_backwards_;
  unit.is_unsettled_ = true;
  computing_ = &unit;
  if (!reducing_) gather_ahead_in_backward();
}

void GatherSchedule::gather_ahead_in_backward() {
  const GroupSchedule* const unit = std::exchange(computing_, nullptr);
  if (!unit) return;
  const auto is_gathered = [&](const GroupSchedule* next) {
    return next->gathers_in_backward && next->schedule().get() == this;
  };
  const auto& given = unit->ahead_in_backward;
  for (const auto& next : given)
    if (const auto known = next.lock(); known && is_gathered(known.get())) start_gathers(&known, &known + 1);
  const auto last = std::find(left_.rbegin(), left_.rend(), unit);
  if (last == left_.rend()) return;
  left_.resize(left_.rend() - last - 1);  // a module that is called several times is in left_ once per call
  if (given.empty()) start_gathers(left_.rbegin(), std::find_if_not(left_.rbegin(), left_.rend(), is_gathered));
}

void GatherSchedule::finish_reduction() {
  if (const auto group = std::exchange(reducing_, nullptr)) group->finish_reduce();
}

bool GatherSchedule::has_gradients_to_finish(const GroupSchedule& unit) {
  return unit.group_->has_gradients() || (unit.fills_unused && unit.is_unsettled_);
}

void GatherSchedule::finish_gradients(GroupSchedule& unit) {
  const ParameterGroupPtr group = unit.group_;
  unit.is_unsettled_ = false;
  if (!unit.reduces) {
    group->accumulate();
    return;
  }
  finish_reduction();
  group->start_reduce(unit.fills_unused);
  if (group->is_reducing()) reducing_ = group;
}

void GatherSchedule::after_backward(GroupSchedule& unit) {
  if (--unit.n_backwards_ > 0) return;
  unit.n_backwards_ = 0;
  if (computing_ == &unit) {  // this rank had no gradient, others had; keeps their order of messages
    finish_reduction();
    gather_ahead_in_backward();
  }
  if (may_be_ignored(unit)) return;
  if (has_gradients_to_finish(unit)) finish_gradients(unit);
  release_after_backward(unit);
}

void GatherSchedule::release_after_backward(const GroupSchedule& unit) {
  if (unit.n_forwards_ > 0) return;  // the backward runs within a forward
  unit.group_->put_back();
  if (unit.reshards_after_backward) unit.group_->release();
}

void GatherSchedule::end_backward() {
  for (auto each = units_.rbegin(); each != units_.rend(); ++each) {
    GroupSchedule& unit = **each;
    ParameterGroup& group = *unit.group_;
    unit.n_backwards_ = 0;  // no hook reports the end for inputs without gradients
    const bool waits = group.has_accumulated() || group.awaits_all_reduce();  // from an earlier backward
    if (has_gradients_to_finish(unit) || waits || !unit.reduces) finish_gradients(unit);
    unit.is_unsettled_ = false;
    release_after_backward(unit);
    if (group.is_on_its_way()) group.release();
  }
  finish_reduction();
  is_in_backward_ = false;
  ++n_ended_;
  if (n_awaited_ > 0) --n_awaited_;
  computing_ = nullptr;
  if (is_last_backward_) left_.clear();
}

void GatherSchedule::drop_backward() {
  is_in_backward_ = false;
  ++n_ended_;
  if (n_awaited_ > 0) --n_awaited_;
  computing_ = nullptr;
  reducing_ = nullptr;
  for (const auto& unit : units_) {
    unit->n_backwards_ = 0;
    unit->is_unsettled_ = false;
    unit->group_->drop_gradients();
  }
}

void GatherSchedule::drop_failed_backward() {
  if (is_in_backward_ && backward_.expired()) drop_backward();
}

void GatherSchedule::reset() {
  drop_backward();
  n_open_ = 0;
  n_awaited_ = 0;
  entered_.clear();
  left_.clear();
  for (const auto& unit : units_) {
    unit->n_forwards_ = 0;
    unit->has_run_ = false;
    unit->ran_.clear();
    unit->calls.clear();
    unit->group_->release();
  }
}

}  // namespace shardwise
