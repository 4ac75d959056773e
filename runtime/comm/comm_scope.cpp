#include "runtime/comm/comm_scope.h"

#include "runtime/comm/comm_thread.h"
#include "runtime/comm/events.h"

namespace shardwise {
namespace {

constinit thread_local CommThread this_thread;

}  // namespace

CommThread& comm_thread() { return this_thread; }

bool operators_are_read() { return (this_thread.wants & EventReader::kOperators) != 0; }

CommScope::CommScope(const char* op, Cause cause, const void* layouts, Describe describe)
    : op_(op), cause_(cause), layouts_(layouts), describe_(describe), outer_(this_thread.scope) {
  CommThread& thread = this_thread;
  if (outer_ == nullptr) thread.outermost_cause = cause;
  thread.scope = this;
  thread.op = op;
}

CommScope::~CommScope() {
  CommThread& thread = this_thread;
  thread.scope = outer_;
  thread.op = outer_ ? outer_->op_ : "";
}

const char* CommScope::current_op() { return this_thread.op; }

CommScope::Cause CommScope::current_cause() { return this_thread.scope ? this_thread.scope->cause_ : Cause::kProgram; }

void CommScope::permit() {
  if (this_thread.scope) this_thread.scope->cause_ = Cause::kProgram;
}

std::string CommScope::current_layouts() {
  return this_thread.scope && this_thread.scope->describe_ ? this_thread.scope->describe_(this_thread.scope->layouts_)
                                                           : "";
}

}  // namespace shardwise
