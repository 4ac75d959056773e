#include "runtime/dispatch/op_profile.h"

#include "runtime/comm/flight_dump.h"

#include <algorithm>
#include <utility>

namespace shardwise {
namespace {

thread_local OpProfile* innermost_op_profile = nullptr;

}  // namespace

OpProfile::OpProfile() : outer_(innermost_op_profile) {
  innermost_op_profile = this;
  detail::add_op_watcher(1);
}

void OpProfile::stop() {
  if (std::exchange(is_stopped_, true)) return;
  detail::add_op_watcher(-1);
  // Python may close profiles in any order, so this one may be anywhere in the chain.
  OpProfile** link = &innermost_op_profile;
  while (*link != nullptr && *link != this) link = &(*link)->outer_;
  if (*link == this) *link = outer_;
  if (outer_ == nullptr) return;
  outer_->calls_.insert(outer_->calls_.end(), calls_.begin(), calls_.end());
}

OpProfile* OpProfile::current() { return innermost_op_profile; }

std::shared_ptr<const OpRecord> OpProfile::find(const DecisionKey& key) {
  const Known* found = known_.find(key);
  return found ? found->record : nullptr;
}

std::shared_ptr<const OpRecord> OpProfile::remember(const DecisionKey& key, OpRecord record,
                                                    std::vector<SpecPtr> specs) {
  const auto shared = std::make_shared<const OpRecord>(std::move(record));
  known_.insert(key, Known{shared, std::move(specs)});
  return shared;
}

void OpProfile::add_kernel(const OpRecord& record, size_t n_before, uint64_t begin, uint64_t end) {
  // The kernel for autograd and the kernel that it calls for the values count as one call of the operator.
  if (!calls_.empty() && calls_.back().record->op == record.op && is_within_one(n_before)) {
    calls_.back() = {calls_.back().record, begin, end, record.n_collectives, record.bytes_received};
    return;
  }
  auto& known = kernels_[record.op];
  if (!known) known = std::make_shared<const OpRecord>(record);
  add(known, begin, end, record.n_collectives, record.bytes_received);
}

bool OpProfile::is_within_one(size_t first) const {
  return calls_.size() > first && std::all_of(calls_.begin() + static_cast<int64_t>(first), calls_.end(),
                                              [&](const Call& call) { return call.begin >= calls_.back().begin; });
}

void OpProfile::add(std::shared_ptr<const OpRecord> record, uint64_t begin, uint64_t end, int64_t n_collectives,
                    int64_t bytes_received) {
  calls_.push_back({std::move(record), begin, end, n_collectives, bytes_received});
}

std::vector<TimedOperator> OpProfile::operators() const {
  const auto to_ns = unix_clock();
  std::vector<TimedOperator> result;
  result.reserve(calls_.size());
  for (const Call& call : calls_)
    result.push_back({call.record, to_ns(call.begin), to_ns(call.end), call.n_collectives, call.bytes_received});
  return result;
}

}  // namespace shardwise
