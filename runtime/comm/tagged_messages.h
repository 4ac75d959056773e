// runtime/comm/tagged_messages.h: messages that carry the call they belong to, and small collectives made of them.
//
// A backend that matches messages by their tags never receives one of another call, operator or length (Communication::fingerprint): both
// ends wait, and fail at the time-out. Gloo's own collectives carry nothing: one that meets another gives wrong values, or ends the process
// where lengths differ. So most go as tagged messages there, and the ranks meet before a long reduction or broadcast.
#pragma once

#include "runtime/comm/communication.h"

#include <ATen/core/Tensor.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <vector>

namespace shardwise {

/// Tags of ours are not less; the program's own messages in the same group use small ones.
constexpr int kFirstMessageTag = 1 << 30;

/// Starts to send flat `bytes` to the group's member `other`, or to receive them from it. The works keep the tensors.
Communication::WorkPtr send_tagged(const Communication& communication, c10d::Backend& backend, const at::Tensor& bytes,
                                   int64_t other);
Communication::WorkPtr receive_tagged(const Communication& communication, c10d::Backend& backend,
                                      const at::Tensor& bytes, int64_t other);

/// True where collectives go as tagged messages, as far as that is fast: over Gloo.
bool goes_tagged(const c10d::Backend& backend);
/// True where each member sends its `n_bytes` to each other: one round, and short messages.
bool goes_whole(const Group& group, int64_t n_bytes);
/// True where a reduction of longer ones sends its parts to the members that reduce them, and then the results to all: two rounds, and no
/// more bytes than needed.
bool goes_in_parts(int64_t n_bytes);

using TaggedWorks = std::vector<Communication::WorkPtr>;

/// Waits until all members have come to this call with as many bytes: for a collective of the backend's own, whose messages carry nothing.
/// Returns at once where the backend's collectives do.
/// Cost: a tagged byte from each member to each.
void meet_tagged(const Communication& communication, c10d::Backend& backend, const Group& group, int64_t n_bytes);

/// Writes each member's flat `own` into its place among `places`, by group order. The places may be of different lengths, and the own one
/// may be `own`.
TaggedWorks gather_tagged(const Communication& communication, c10d::Backend& backend, const Group& group,
                          const at::Tensor& own, const std::vector<at::Tensor>& places);

/// Sends `bytes` of the member at `root_index` to all.
TaggedWorks broadcast_tagged(const Communication& communication, c10d::Backend& backend, const Group& group,
                             const at::Tensor& bytes, int64_t root_index);

/// Sends the parts of flat `input`, of as many bytes as `sent` says by member, and receives those of flat `output`.
TaggedWorks all_to_all_tagged(const Communication& communication, c10d::Backend& backend, const Group& group,
                              const at::Tensor& output, const at::Tensor& input, const std::vector<int64_t>& received,
                              const std::vector<int64_t>& sent);

/// Reduces the rows into flat `result`, in their order: the same bits on all ranks.
void reduce_rows(const at::Tensor& rows, c10d::ReduceOp::RedOpType op, const at::Tensor& result);

}  // namespace shardwise
