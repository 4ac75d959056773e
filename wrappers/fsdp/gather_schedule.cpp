#include "wrappers/fsdp/gather_schedule.h"

#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/graph_task.h>

#include <algorithm>

namespace shardwise {
namespace {

bool is_backward_running() { return torch::autograd::get_current_graph_task_id() != -1; }

void start_gather(ParameterGroup& group) {
  if (group.is_stale()) group.release();
  group.start_gather();
}

}  // namespace

void GatherSchedule::add(const ParameterGroupPtr& group, std::shared_ptr<GroupSchedule> settings) {
  members_.push_back({group, std::move(settings)});
  listen(group);
}

void GatherSchedule::take(GatherSchedule& other) {
  for (Member& member : std::exchange(other.members_, {})) add(member.group, member.settings);
}

void GatherSchedule::replace(const ParameterGroup& old, const ParameterGroupPtr& fresh) {
  for (const Member& member : members_)
    for (auto* const ahead : {&member.settings->ahead_in_forward, &member.settings->ahead_in_backward})
      for (auto& each : *ahead)
        if (each.lock().get() == &old) each = fresh;
  member_of(old).group = fresh;
  entered_.clear();
  left_.clear();
  listen(fresh);
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

GatherSchedule::Member* GatherSchedule::find(const ParameterGroup* group) {
  const auto found = std::ranges::find_if(members_, [&](const Member& member) { return member.group.get() == group; });
  return found == members_.end() ? nullptr : &*found;
}

GatherSchedule::Member& GatherSchedule::member_of(const ParameterGroup& group) {
  Member* const member = find(&group);
  TORCH_INTERNAL_ASSERT(member, "[fully_shard] a group of parameters is used by a schedule that it is not in");
  return *member;
}

void GatherSchedule::enter_forward(const ParameterGroupPtr& group) {
  if (is_backward_running()) {
    group->gather();
    return;
  }
  if (n_open_ == 0) {
    if (is_in_backward_) reset();  // the last backward failed
    entered_before_ = std::exchange(entered_, {});
    if (at::GradMode::is_enabled() && n_awaited_++ == 0)
      for (Member& member : members_) member.has_run = false;
  }
  if (group->is_stale()) group->release();
  group->follow_requires_grad();
  group->gather();
  Member& member = member_of(*group);
  ++n_open_;
  ++member.n_forwards;
  entered_.push_back(group.get());
  gather_ahead_in_forward(*member.settings);
}

void GatherSchedule::gather_ahead_in_forward(const GroupSchedule& settings) {
  if (!settings.ahead_in_forward.empty()) {
    for (const auto& next : settings.ahead_in_forward)
      if (const auto group = next.lock()) start_gather(*group);
    return;
  }
  const size_t n = entered_.size();
  if (n >= entered_before_.size() || !std::equal(entered_.begin(), entered_.end(), entered_before_.begin())) return;
  if (Member* const next = find(entered_before_[n])) start_gather(*next->group);
}

void GatherSchedule::leave_forward(const ParameterGroupPtr& group, bool releases) {
  if (is_backward_running()) return;
  if (n_open_ > 0) --n_open_;
  Member& of = member_of(*group);
  if (at::GradMode::is_enabled()) {
    left_.push_back(group.get());
    of.has_run = true;
  }
  if (of.n_forwards > 0) --of.n_forwards;
  if (of.n_forwards == 0) group->put_back();
  if (releases) reshard_after_forward(group);
  if (n_open_ > 0) return;
  for (const Member& member : members_)  // gathered ahead for modules that did not run
    if (member.group->is_on_its_way()) member.group->release();
}

void GatherSchedule::reshard_after_forward(const ParameterGroupPtr& group) {
  const Member& of = member_of(*group);
  if (is_backward_running() || of.n_forwards > 0 || !of.settings->reshards_after_forward) return;
  if (of.settings->n_keeping > 0)
    group->release_to(of.settings->n_keeping);
  else
    group->release();
}

bool GatherSchedule::may_be_ignored(const GroupSchedule& settings) {
  // A gather for the backward is collective. So if there is one, no rank's loss may ignore the outputs.
  return settings.fills_unused && !(settings.reshards_after_forward && settings.gathers_in_backward);
}

void GatherSchedule::begin_backward() {
  drop_failed_backward();
  if (std::exchange(is_in_backward_, true)) return;
  const auto token = std::make_shared<bool>();
  backward_ = token;
  torch::autograd::Engine::get_default_engine().queue_callback(
      [self = shared_from_this(), token] { self->end_backward(); });
  for (Member& member : members_) {  // even if this rank's loss ignores the outputs
    const GroupSchedule& settings = *member.settings;
    if (!settings.fills_unused || !member.has_run) continue;
    member.is_unsettled = true;
    if (may_be_ignored(settings) && settings.gathers_in_backward)
      member.group->start_gather();  // an earlier backward may have released it
  }
}

int64_t GatherSchedule::n_ended() {
  drop_failed_backward();
  return n_ended_;
}

void GatherSchedule::before_backward(const ParameterGroupPtr& group) {
  begin_backward();
  Member& member = member_of(*group);
  if (member.settings->gathers_in_backward) group->gather();
  ++member.n_backwards;
  member.is_unsettled = true;
  computing_ = group;
  if (!reducing_) gather_ahead_in_backward();
}

void GatherSchedule::gather_ahead_in_backward() {
  const auto group = std::exchange(computing_, nullptr);
  if (!group) return;
  const auto start = [&](const ParameterGroup* next) {
    const Member* const member = find(next);
    if (member && member->settings->gathers_in_backward) start_gather(*member->group);
  };
  const auto& given = member_of(*group).settings->ahead_in_backward;
  for (const auto& next : given) start(next.lock().get());
  const auto last = std::find(left_.rbegin(), left_.rend(), group.get());
  if (last == left_.rend()) return;
  left_.resize(left_.rend() - last - 1);  // a module that is called several times is in left_ once per call
  if (given.empty() && !left_.empty()) start(left_.back());
}

void GatherSchedule::finish_reduction() {
  if (const auto group = std::exchange(reducing_, nullptr)) group->finish_reduce();
}

bool GatherSchedule::has_gradients_to_finish(const Member& member) {
  return member.group->has_gradients() || (member.settings->fills_unused && member.is_unsettled);
}

void GatherSchedule::finish_gradients(Member& member) {
  const ParameterGroupPtr group = member.group;
  member.is_unsettled = false;
  if (!member.settings->reduces) {
    group->accumulate();
    return;
  }
  finish_reduction();
  group->start_reduce(member.settings->fills_unused);
  if (group->is_reducing()) reducing_ = group;
}

void GatherSchedule::after_backward(const ParameterGroupPtr& group) {
  Member& member = member_of(*group);
  if (--member.n_backwards > 0) return;
  member.n_backwards = 0;
  if (computing_ == group) {  // this rank had no gradient, others had; keeps their order of messages
    finish_reduction();
    gather_ahead_in_backward();
  }
  if (may_be_ignored(*member.settings)) return;
  if (has_gradients_to_finish(member)) finish_gradients(member);
  release_after_backward(member);
}

void GatherSchedule::release_after_backward(const Member& member) {
  if (member.n_forwards > 0) return;  // the backward runs within a forward
  member.group->put_back();
  if (member.settings->reshards_after_backward) member.group->release();
}

void GatherSchedule::end_backward() {
  for (auto member = members_.rbegin(); member != members_.rend(); ++member) {
    const ParameterGroup& group = *member->group;
    member->n_backwards = 0;  // no hook reports the end for inputs without gradients
    const bool waits = group.has_accumulated() || group.awaits_all_reduce();  // from an earlier backward
    if (has_gradients_to_finish(*member) || waits || !member->settings->reduces) finish_gradients(*member);
    member->is_unsettled = false;
    release_after_backward(*member);
    if (group.is_on_its_way()) member->group->release();
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
  for (Member& member : members_) {
    member.n_backwards = 0;
    member.is_unsettled = false;
    member.group->drop_gradients();
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
  for (Member& member : members_) {
    member.n_forwards = 0;
    member.has_run = false;
    member.group->release();
  }
}

}  // namespace shardwise
