// runtime/dispatch/op_trace.h: records of how dispatch ran each operator: its rule, the layouts chosen, the bytes received.
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
  std::vector<std::string> used;     // ... and the layouts under which it ran
  std::vector<std::string> results;  // layout of each distributed result
  int64_t n_collectives = 0;
  int64_t bytes_received = 0;  // by this rank
};

/// Records this thread's operators during its lifetime. Traces nest: an outer one also records what inner ones do. A composite operator is
/// recorded as its inner operators. Cost without a trace: a thread-local read per operator.
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

/// When it ends, adds a line for kernel `op` if a trace is active and nothing within the kernel added one.
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

/// A line per operator under a heading, in aligned columns.
std::string to_string(const std::vector<OpRecord>& records);

}  // namespace shardwise
