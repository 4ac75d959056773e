// runtime/comm/collectives.h: the collectives that Shardwise calls, each counted by the active CommTraces.
//
// They call the c10d backend of the tensors' device directly, below autograd and dispatch. A group of one sends nothing and
// counts nothing, as do all_reduce and broadcast of an empty tensor, and all of tensors on meta, whose results are not written. Every function but start_all_reduce waits for the result. What a
// rank alone can see to be wrong is a c10::ValueError before the first message.
#pragma once

#include "placements/placement.h"
#include "runtime/comm/group.h"

#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

namespace shardwise {

/// Sends `send_splits[i]` elements of flat `input` to group member i and receives `receive_splits[i]` into flat `output`.
/// Both contiguous, 1-D, of one dtype (any, bool included). Received bytes exclude the rank's own.
void all_to_all(const Group& group, const at::Tensor& output, const at::Tensor& input,
                const std::vector<int64_t>& receive_splits, const std::vector<int64_t>& send_splits);

/// An all-reduce under way.
class Reduction {
 public:
  virtual ~Reduction() = default;
  /// Waits, and writes the result into the tensor. Once only.
  virtual void finish() = 0;
};

/// all_reduce() without the wait; null where there is nothing to send. The tensor is neither read nor written until finish().
std::unique_ptr<Reduction> start_all_reduce(const Group& group, const at::Tensor& tensor, Reduce reduce);

/// Reduces contiguous `tensor` over the group in place, in any dtype (reduce_dtype.h says how; a NaN gives NaN).
/// kAvg is the sum divided by the group's size.
/// Throws: c10::TypeError for avg of integers and for max, min or product of complex numbers.
void all_reduce(const Group& group, const at::Tensor& tensor, Reduce reduce);

/// Sends contiguous `tensor` of the member at `root_index` to all, in place.
void broadcast(const Group& group, const at::Tensor& tensor, int64_t root_index);

/// Gathers each member's numbers, by group order. One message of 32 words per rank; a second one where a rank has more than 31 numbers.
std::vector<std::vector<int64_t>> all_gather_numbers(const Group& group, const std::vector<int64_t>& numbers);

}  // namespace shardwise
