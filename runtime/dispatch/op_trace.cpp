#include "runtime/dispatch/op_trace.h"

#include "runtime/comm/comm_trace.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

namespace shardwise {
namespace {

thread_local OpTrace* innermost = nullptr;

constexpr size_t kColumns = 6;
using Line = std::array<std::string, kColumns>;

Line line_of(const OpRecord& record) {
  const std::string given = fmt::format("{}", fmt::join(record.given, ", "));
  const std::string used = fmt::format("{}", fmt::join(record.used, ", "));
  return {record.op,
          record.rule,
          given,
          given == used ? "as given" : used,
          fmt::format("{}", fmt::join(record.results, ", ")),
          fmt::format("{:L}", record.bytes_received)};
}

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
  std::vector<Line> lines = {{"operator", "rule", "operands", "run as", "results", "bytes received"}};
  for (const OpRecord& record : records) lines.push_back(line_of(record));
  std::array<size_t, kColumns> widths{};
  for (const Line& line : lines)
    for (size_t i = 0; i < kColumns; ++i) widths[i] = std::max(widths[i], line[i].size());
  std::string text;
  for (const Line& line : lines) {
    for (size_t i = 0; i + 1 < kColumns; ++i) text += fmt::format("{:<{}}  ", line[i], widths[i]);
    text += fmt::format("{:>{}}\n", line.back(), widths.back());
  }
  return text;
}

}  // namespace shardwise
