// runtime/comm/collectives.h: the collectives of Shardwise. Active CommTraces count each one.
//
// They call the c10d backend of the tensors' device directly, below autograd and dispatch. Nothing is sent or counted in a group of one,
// or for an all_reduce or broadcast of an empty tensor. In a group that sends nothing (Group::sends), they count, and tensors keep their
// values. Every function except start_all_reduce waits for the result. Errors that a rank can detect by itself are c10::ValueErrors before
// the first message.
#pragma once

#include "placements/placement.h"
#include "runtime/comm/events.h"
#include "runtime/comm/group.h"

#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

namespace shardwise {

/// Sends `send_splits[i]` elements of flat `input` to group member i and receives `receive_splits[i]` elements from it into flat `output`.
/// Both tensors are contiguous, 1-D and of one dtype (any, including bool). Received bytes exclude the rank's own.
void all_to_all(const Group& group, const at::Tensor& output, const at::Tensor& input,
                const std::vector<int64_t>& receive_splits, const std::vector<int64_t>& send_splits);

/// An all-reduce in flight.
class Reduction {
 public:
  virtual ~Reduction() = default;
  /// Waits, and writes the result. Call it once only.
  virtual void finish() = 0;
};

/// How much of a reduction its start may wait for. A start that waits does so for the other ranks' starts: starts have one order on all ranks.
enum class WaitsFor {
  kNothing,  // the terms are read: the program may write to them before finish()
  kShort,  // a short reduction over Gloo ends where it starts: a thread for the rest of it costs more than it takes. The terms stay as they are.
  kAll,    // finish() follows at once
};

/// all_reduce() without the wait; null if there is nothing to send. Neither read nor write the result before finish(). `waits` is the same on all ranks.
std::unique_ptr<Reduction> start_all_reduce(const Group& group, const at::Tensor& terms, const at::Tensor& result,
                                            Reduce reduce, WaitsFor waits = WaitsFor::kNothing);

/// Reduces contiguous `terms` over the group into contiguous `result`, which has the same sizes and dtype and may be the same tensor. Any dtype: see
/// reduce_dtype.h; a NaN gives NaN. kAvg is the sum divided by the group's size.
/// Throws: c10::TypeError for avg of integers, and for max, min or product of complex numbers.
/// Cost: short tensors and those that the backend reduces are copied first, unless the result is the same tensor.
void all_reduce(const Group& group, const at::Tensor& terms, const at::Tensor& result, Reduce reduce);
inline void all_reduce(const Group& group, const at::Tensor& tensor, Reduce reduce) {
  all_reduce(group, tensor, tensor, reduce);
}

/// Copies contiguous `tensor` of the member at `root_index` to all members, in place.
void broadcast(const Group& group, const at::Tensor& tensor, int64_t root_index);

/// Gathers the members' rows, equally many bytes each, into the rows of contiguous `gathered`, by group order. `call`: its name and how it is counted.
void all_gather(const Group& group, CommCall call, const at::Tensor& row, const at::Tensor& gathered);

/// Gathers each member's numbers, by group order. Cost: one message of 32 words per rank, and a second one if a rank has more than 31
/// numbers.
std::vector<std::vector<int64_t>> all_gather_numbers(const Group& group, const std::vector<int64_t>& numbers);

}  // namespace shardwise
