// runtime/comm/tagged_messages.h: messages whose tags identify the call they belong to, and small collectives built from them.
//
// A backend that matches messages by tag never receives a message of another call, operator or length (Communication::fingerprint): both
// ends wait, and fail at the timeout. Gloo's own collectives carry no tag: when two different ones meet, values are wrong, or the process
// ends if lengths differ. So over Gloo most collectives are sent as tagged messages, and the ranks meet before a long reduction or
// broadcast. Tagged messages are written by a thread of their own: Note [Messages have a thread].
#pragma once

#include "runtime/comm/communication.h"

#include <ATen/core/Tensor.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <optional>
#include <vector>

namespace shardwise {

/// Our tags are at least this. The program's own messages in the same group use small tags.
constexpr int kFirstMessageTag = 1 << 30;

/// Starts to send flat `bytes` to group member `other`, or to receive them from it. The works keep the tensors alive. `length` is that of the call, if
/// it is not the message's.
Communication::WorkPtr send_tagged(const Communication& communication, c10d::Backend& backend, const at::Tensor& bytes,
                                   int64_t other, std::optional<int64_t> length = std::nullopt);
Communication::WorkPtr receive_tagged(const Communication& communication, c10d::Backend& backend,
                                      const at::Tensor& bytes, int64_t other,
                                      std::optional<int64_t> length = std::nullopt);

/// True if collectives are sent as tagged messages where that is fast: over Gloo.
bool goes_tagged(const c10d::Backend& backend);
/// True if each member sends all its `n_bytes` to each other one: a single round, for short messages.
bool goes_whole(const Group& group, int64_t n_bytes);
/// True if an awaited reduction goes by reduce_by_tree(), for short tensors, or by reduce_by_doubling(), for longer ones.
bool goes_by_tree(const Group& group, int64_t n_bytes);
bool goes_doubling(const Group& group, int64_t n_bytes);
/// True if a longer reduction sends its parts to the members that reduce them, and then the results to all: two rounds, and no more bytes
/// than needed.
bool goes_in_parts(int64_t n_bytes);

using TaggedWorks = std::vector<Communication::WorkPtr>;
void wait_for_all(const TaggedWorks& works);

/// Waits until all members have reached this call with the same number of bytes. Used before a collective of the backend whose messages
/// carry no tag; returns at once if the backend checks its collectives itself.
/// Cost: a tagged byte along the tree.
void meet_tagged(const Communication& communication, c10d::Backend& backend, const Group& group, int64_t n_bytes);
/// Sends `parts[i]` to member i, and receives `places[i]` from it, except for tensors that are empty or undefined. Copies this rank's part,
/// unless its place is that part.
TaggedWorks exchange_tagged(const Communication& communication, c10d::Backend& backend, const Group& group,
                            const std::vector<at::Tensor>& parts, const std::vector<at::Tensor>& places);
/// exchange_tagged() of one part for all members.
TaggedWorks gather_tagged(const Communication& communication, c10d::Backend& backend, const Group& group,
                          const at::Tensor& own, const std::vector<at::Tensor>& places);
/// The next two functions wait. They send messages along a tree in which a member has up to 7 children on a level: to the root, and back. All members
/// send 2 (n - 1) messages together. If more ranks than cores exchange messages with each other, Gloo's threads spin: Note [Messages have a thread].
/// Four ranks of two cores gather or add up a number in 0.4 ms by the tree, and in 2 ms if each sends to the others, or by doubling.

/// Gathers equally long parts into the rows of `gathered`.
void gather_rows(const Communication& communication, c10d::Backend& backend, const Group& group, const at::Tensor& own,
                 const at::Tensor& gathered);

/// Reduces `total`, contiguous, over the members. All get the same bits.
void reduce_by_tree(const Communication& communication, c10d::Backend& backend, const Group& group,
                    const at::Tensor& total, c10d::ReduceOp::RedOpType op);

/// Reduces `total`, contiguous, over the members in rounds (recursive doubling: Optimization of Collective Communication Operations in MPICH, 2005).
/// In the round of step s = 1, 2, 4, ... member i exchanges its total so far with member i ^ s. So a member sends log2(n) messages, and all
/// members get the same bits. If n is no power of two, the last members give their terms to others first, and get the result from them.
/// Waits for all rounds: a round needs its partner, who may be waiting elsewhere if the reduction runs in the background.
void reduce_by_doubling(const Communication& communication, c10d::Backend& backend, const Group& group,
                        const at::Tensor& total, c10d::ReduceOp::RedOpType op);

/// Closes this rank's connections in the group, if they are Gloo's, after a communication failed. Members that wait for this rank then fail at once
/// and do the same. Otherwise only the partners of a rank that has gone would fail at once, and the others at the timeout.
void hang_up(const Group& group) noexcept;

/// The rows of all members, in group order: `own`, which is flat, at this rank's index, and new memory of the same size at the others.
std::vector<at::Tensor> rows_around(const Group& group, const at::Tensor& own);
/// Reduces the rows of rows_around() in order, so that all ranks get the same bits. `index`: this rank's. `result`: flat; may be this rank's row.
/// Overwrites a received row.
void reduce_rows(int64_t index, const std::vector<at::Tensor>& rows, c10d::ReduceOp::RedOpType op,
                 const at::Tensor& result);

}  // namespace shardwise
