#include "runtime/dispatch/op_trace.h"

#include "runtime/comm/comm_trace.h"
#include "text/table.h"

#include <fmt/ranges.h>

namespace shardwise {
namespace {

thread_local OpTrace* innermost = nullptr;

}  // namespace

OpTrace::OpTrace() : outer_(innermost) { innermost = this; }

OpTrace::~OpTrace() {
  // Python closes traces in any order: leave the chain wherever this one stands in it.
  OpTrace** link = &innermost;
  while (*link != nullptr && *link != this) link = &(*link)->outer_;
  if (*link == this) *link = outer_;
}

bool OpTrace::is_active() { return innermost != nullptr; }

void OpTrace::record(const OpRecord& record) {
  for (OpTrace* trace = innermost; trace != nullptr; trace = trace->outer_) trace->records_.push_back(record);
}

struct KernelTrace::Watch {
  std::string op;
  OpTrace within;
  CommTrace sent;
};

KernelTrace::KernelTrace(const std::string& op) {
  if (OpTrace::is_active()) [[unlikely]]
    watch_.reset(new Watch{op, {}, {}});
}

KernelTrace::~KernelTrace() {
  if (!watch_ || !watch_->within.records().empty()) return;
  OpRecord record{
      watch_->op, "a kernel of its own", {}, {}, {}, watch_->sent.total_count(), watch_->sent.bytes_received()};
  OpTrace::record(record);
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
