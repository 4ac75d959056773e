#include "runtime/comm/comm_trace.h"

#include "runtime/comm/comm_cause.h"
#include "runtime/comm/message_pattern.h"

namespace shardwise {
namespace {

thread_local CommTrace* innermost_trace = nullptr;
thread_local const CommScope* innermost_scope = nullptr;
thread_local CommScope::Cause outermost_cause = CommScope::Cause::kProgram;  // of the outermost scope, as it was opened
thread_local const MessagePattern* innermost_pattern = nullptr;

}  // namespace

CommTrace::CommTrace() : outer_(innermost_trace) { innermost_trace = this; }

CommTrace::~CommTrace() {
  // Python closes traces in any order: leave the chain wherever this one stands in it.
  CommTrace** link = &innermost_trace;
  while (*link != nullptr && *link != this) link = &(*link)->outer_;
  if (*link == this) *link = outer_;
}

void CommTrace::record(const char* collective, int64_t n_ranks, int64_t bytes_sent, int64_t bytes_received) {
  for (CommTrace* trace = innermost_trace; trace != nullptr; trace = trace->outer_)
    trace->events_.push_back({collective, CommScope::current_op(), n_ranks, bytes_sent, bytes_received});
}

int64_t CommTrace::bytes_received() const {
  int64_t total = 0;
  for (const CommEvent& event : events_) total += event.bytes_received;
  return total;
}

int64_t CommTrace::bytes_sent() const {
  int64_t total = 0;
  for (const CommEvent& event : events_) total += event.bytes_sent;
  return total;
}

std::map<std::string, int64_t> CommTrace::counts() const {
  std::map<std::string, int64_t> counts;
  for (const CommEvent& event : events_) ++counts[event.collective];
  return counts;
}

CommScope::CommScope(const char* op, Cause cause, const void* layouts, Describe describe)
    : op_(op), cause_(cause), layouts_(layouts), describe_(describe), outer_(innermost_scope) {
  if (outer_ == nullptr) outermost_cause = cause;
  innermost_scope = this;
}

CommScope::~CommScope() { innermost_scope = outer_; }

const char* CommScope::current_op() { return innermost_scope ? innermost_scope->op_ : ""; }

CommScope::Cause CommScope::current_cause() { return innermost_scope ? innermost_scope->cause_ : Cause::kProgram; }

bool program_asks() { return innermost_scope == nullptr || outermost_cause == CommScope::Cause::kProgram; }

void CommScope::permit() {
  if (innermost_scope) innermost_scope->cause_ = Cause::kProgram;
}

std::string CommScope::current_layouts() {
  return innermost_scope && innermost_scope->describe_ ? innermost_scope->describe_(innermost_scope->layouts_) : "";
}

MessagePattern::MessagePattern(const void* name, Describe describe)
    : name_(name), describe_(describe), outer_(innermost_pattern) {
  innermost_pattern = this;
}

MessagePattern::~MessagePattern() { innermost_pattern = outer_; }

const char* MessagePattern::current() {
  const bool is_asked = innermost_trace != nullptr && innermost_pattern != nullptr;
  return is_asked ? innermost_pattern->describe_(innermost_pattern->name_) : "all_to_all";
}

}  // namespace shardwise
