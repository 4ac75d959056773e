// runtime/dispatch/op_trace.h: what dispatch made of each operator: its rule, the layouts chosen, the bytes received.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace shardwise {

struct OpRecord {
  std::string op;
  std::string rule;                  // its text, or "none: replicated"
  std::vector<std::string> given;    // layout of each operand; "plain" for a 0-dim torch.Tensor
  std::vector<std::string> used;     // ... under which it ran
  std::vector<std::string> results;  // layout of each distributed result
  int64_t n_collectives = 0;
  int64_t bytes_received = 0;  // by this rank
};

/// Records this thread's operators while it lives. Traces nest; each sees what the inner ones see. Of an operator that is
/// composed of others, the parts. Cost without a trace: a thread-local read per operator.
class OpTrace {
 public:
  OpTrace();
  ~OpTrace();
  OpTrace(const OpTrace&) = delete;
  OpTrace& operator=(const OpTrace&) = delete;

  const std::vector<OpRecord>& records() const { return records_; }

  static bool is_active();
  static void record(const OpRecord& record);

 private:
  std::vector<OpRecord> records_;
  OpTrace* outer_;
};

/// Adds a line for kernel `op` at its end, where a trace is on and nothing within had a line.
class KernelTrace {
 public:
  explicit KernelTrace(const std::string& op);
  ~KernelTrace();
  KernelTrace(const KernelTrace&) = delete;
  KernelTrace& operator=(const KernelTrace&) = delete;

 private:
  struct Watch;
  std::unique_ptr<Watch> watch_;  // null without a trace
};

/// A line per operator under a heading, columns aligned.
std::string to_string(const std::vector<OpRecord>& records);

}  // namespace shardwise
