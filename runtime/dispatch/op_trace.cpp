#include "runtime/dispatch/op_trace.h"

#include "runtime/comm/comm_trace.h"
#include "runtime/comm/tracing.h"
#include "runtime/dispatch/op_profile.h"
#include "text/table.h"

#include <c10/util/ApproximateClock.h>
#include <fmt/ranges.h>

#include <optional>

namespace shardwise {
namespace {

thread_local OpTrace* innermost = nullptr;
thread_local int n_watchers = 0;  // active traces and profiles

}  // namespace

void detail::add_op_watcher(int n) { n_watchers += n; }

bool detail::has_op_trace() { return innermost != nullptr; }

OpTrace::OpTrace() : outer_(innermost) {
  innermost = this;
  detail::add_op_watcher(1);
}

OpTrace::~OpTrace() {
  detail::add_op_watcher(-1);
  // Python may close traces in any order, so this one may be anywhere in the chain.
  OpTrace** link = &innermost;
  while (*link != nullptr && *link != this) link = &(*link)->outer_;
  if (*link == this) *link = outer_;
}

bool OpTrace::is_active() { return n_watchers > 0; }

void OpTrace::record(const OpRecord& record) {
  for (OpTrace* trace = innermost; trace != nullptr; trace = trace->outer_) trace->records_.push_back(record);
}

struct KernelTrace::Watch {
  explicit Watch(const std::string& op)
      : op(op), profile(OpProfile::current()), n_before(profile == nullptr ? 0 : profile->size()) {
    if (detail::has_op_trace()) within.emplace();
  }

  std::string op;
  std::optional<OpTrace> within;  // present if there is an outer trace
  CommTrace sent;
  OpProfile* profile;
  size_t n_before;  // calls in the profile before this one
  uint64_t begin = c10::getApproximateTime();
};

KernelTrace::KernelTrace(const std::string& op) {
  if (OpTrace::is_active() && !is_tracing()) [[unlikely]]
    watch_ = std::make_unique<Watch>(op);
}

KernelTrace::~KernelTrace() {
  if (!watch_) return;
  const int64_t n_sent = watch_->sent.total_count(), n_bytes = watch_->sent.bytes_received();
  OpProfile* const profile = OpProfile::current();
  const OpRecord record{watch_->op, "a kernel of its own", {}, {}, {}, n_sent, n_bytes};
  if (profile != nullptr && profile == watch_->profile)
    profile->add_kernel(record, watch_->n_before, watch_->begin, c10::getApproximateTime());
  if (watch_->within && watch_->within->records().empty()) OpTrace::record(record);
}

std::string to_string(const std::vector<OpRecord>& records) {
  detail::TextTable table(
      {{"operator"}, {"rule"}, {"operands"}, {"run as"}, {"results"}, {"bytes received", detail::Align::kRight}});
  for (const OpRecord& record : records) {
    const std::string given = fmt::format("{}", fmt::join(record.given, ", "));
    const std::string used = fmt::format("{}", fmt::join(record.used, ", "));
    table.add({record.op, record.rule, given, given == used ? "as given" : used,
               fmt::format("{}", fmt::join(record.results, ", ")), detail::with_commas(record.bytes_received)});
  }
  return table.to_string();
}

}  // namespace shardwise
