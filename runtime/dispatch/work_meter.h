// runtime/dispatch/work_meter.h: counts the arithmetic and the memory traffic of a thread's operators on meta tensors.
//
//   const WorkMeter meter;
//   at::mm(at::empty({8, 4}, at::kMeta), at::empty({4, 2}, at::kMeta));
//   meter.works();                                        // mm: 128 floating-point operations, 256 bytes
#pragma once

#include <ATen/record_function.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace shardwise {

/// Equal calls of an operator that computes on plain tensors on meta. `flops` counts products of matrices, convolutions and attention;
/// it is 0 for other operators. `bytes` is the size of the tensors that it reads and writes, each counted once per call.
struct Work {
  std::shared_ptr<const std::string> op;  // "aten::mm"
  int64_t flops = 0;                      // of all calls
  int64_t bytes = 0;                      // of all calls
  bool is_on_pieces = false;              // within an operator on a distributed tensor, or for its messages
  int64_t n_calls = 1;
};

/// Records the work of the thread that makes it, until stop() on that thread. Views, operators that other operators call, and those under ShapesAlone do not count.
/// While it lives, dispatch takes its general path. Cost: about a microsecond per operator.
class WorkMeter {
 public:
  /// Throws: c10::ValueError if another one records this thread.
  WorkMeter();
  ~WorkMeter() { stop(); }
  C10_DISABLE_COPY_AND_ASSIGN(WorkMeter);

  /// Records nothing further and keeps what was recorded. A second call does nothing.
  void stop();

  /// The number of works so far. Later calls are works of their own.
  int64_t n_works();
  const std::vector<Work>& works() const;

  struct Recording;

 private:
  std::shared_ptr<Recording> recording_;
};

}  // namespace shardwise
