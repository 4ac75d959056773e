// runtime/tensor/reduced_value.h: what a Partial tensor stands for, kept on it so that each Partial is reduced at most once.
#pragma once

#include "runtime/tensor/write_watch.h"

#include <atomic>
#include <cstdint>
#include <memory>

namespace shardwise {

/// Costs the memory of `tensor` as long as the Partial lives. A write to the Partial by an operator ends it, on all ranks alike: WriteWatch
/// tells. A write past operators, to what to_local() gave, may be one rank's alone: autograd's version tells that rank.
class ReducedValue {
 public:
  /// `tensor`: distributed, without Partial, to be read only; `write_count`: of `partial`, before it was reduced.
  ReducedValue(const DTensorImpl& partial, at::Tensor tensor, uint32_t write_count);

  const at::Tensor& tensor() const { return tensor_; }
  /// False where an operator wrote to `partial` since.
  /// Throws: c10::ValueError, before any message, where this rank wrote past operators: the others cannot know, and would neither reduce
  /// with it nor see what it wrote.
  bool is_of(const DTensorImpl& partial) const;

 private:
  const at::Tensor tensor_;
  const uint32_t write_count_;
  const std::shared_ptr<std::atomic<bool>> is_stale_ = std::make_shared<std::atomic<bool>>(false);
  const WriteWatch watch_;
};

}  // namespace shardwise
