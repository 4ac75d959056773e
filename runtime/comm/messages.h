// runtime/comm/messages.h: tensors sent from one rank to another, many at once and asynchronously.
//
//   auto messages = exchange(group, device, {{2, rows}}, {{0, above}, {0, below}});    // to rank 2; two from rank 0
//   ...                                                                                // work that does not need them
//   messages->wait();
//
// Tensors are sent as bytes, so only the two ends need to know the dtype. Several messages between a pair of ranks match in order. Over
// Gloo and threads a message of another call, operator or length is never received (tagged_messages.h). NCCL cannot tell messages apart;
// with NCCL, SHARDWISE_CHECK=1 names ranks whose calls differ.
#pragma once

#include "runtime/comm/group.h"

#include <ATen/core/Tensor.h>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include <exception>
#include <functional>
#include <memory>
#include <vector>

namespace shardwise {

class Communication;

struct Message {
  int64_t rank;       // global rank of the other end
  at::Tensor tensor;  // contiguous, not empty; neither read nor write it until Messages::wait
  /// For a send: writes the tensor just before it is sent, while earlier messages are already in flight.
  std::function<void()> fill = {};
  /// Bytes that reach the other end in shared memory (peer_memory.h), if the message only says so. They are counted in place of the tensor's.
  int64_t n_bytes_there = 0;
};

/// Messages in flight. Keeps their tensors alive.
class Messages {
 public:
  using WorkPtr = c10::intrusive_ptr<c10d::Work>;

  Messages();
  Messages(std::unique_ptr<Communication> communication, std::vector<WorkPtr> works, std::vector<at::Tensor> tensors);
  /// Waits, and swallows errors. While an exception unwinds it does not wait, because the other ranks may be waiting for this one.
  ~Messages();
  C10_DISABLE_COPY_AND_ASSIGN(Messages);

  /// Returns when all messages are sent and received. A second call does nothing, or throws the first one's error again.
  /// Throws: the backend's error. With threads: c10::DistBackendError if a rank is gone, c10::ValueError if sizes differ. The other
  /// messages are then dropped.
  void wait();

 private:
  std::unique_ptr<Communication> communication_;  // null after it has ended, and if there are no messages
  std::vector<WorkPtr> works_;
  std::vector<at::Tensor> tensors_;
  std::exception_ptr failure_;
};

/// Starts all messages and returns. Every member of the group must call it, even without a message. Both ends list a message in the same
/// exchange, and the n-th send of a pair matches the n-th receive. So the two ends list equally many messages with the same numbers of
/// bytes.
///
/// Counted as one "all_to_all", or as `pattern()`, by a rank that sends or receives anything.
/// Throws: c10::ValueError, before the first message, for a tensor that is empty, not contiguous or not on `device`, and for a message to
/// the rank itself or to a non-member. Cost: no copies, except with threads one of each send.
///
/// `by_all`: false if members without a message may stay away, as ranks outside both of two meshes do. Then the order of calls is not
/// checked, and all members must have called connect() (group_backend.h) before.
/// `pattern`: the collective that the exchange amounts to, "all_gather". Called only if an EventReader is open.
std::shared_ptr<Messages> exchange(const Group& group, c10::Device device, std::vector<Message> sends,
                                   std::vector<Message> receives, bool by_all = true,
                                   const std::function<const char*()>& pattern = nullptr);

}  // namespace shardwise
