// runtime/comm/messages.h: tensors sent from one rank to another, many at once and without a wait.
//
//   auto messages = exchange(group, device, {{2, rows}}, {{0, above}, {0, below}});    // to rank 2; two from rank 0
//   ...                                                                                // work that needs none of them
//   messages->wait();
//
// They travel as bytes, so the dtype is the two ends' own affair. Several messages between one pair match in order. Over Gloo and threads a
// message of another call, operator or length is never received (tagged_messages.h). NCCL does not tell them apart: there SHARDWISE_CHECK=1
// names ranks that differ.
#pragma once

#include "runtime/comm/group.h"

#include <ATen/core/Tensor.h>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include <functional>
#include <memory>
#include <vector>

namespace shardwise {

class Communication;

struct Message {
  int64_t rank;       // global, of the other end
  at::Tensor tensor;  // contiguous, of at least one element; neither read nor written by others until Messages::wait
  /// Of a send: writes the tensor, just before it is sent, while those before it are under way already.
  std::function<void()> fill = {};
};

/// Messages under way. Keeps their tensors alive.
class Messages {
 public:
  using WorkPtr = c10::intrusive_ptr<c10d::Work>;

  Messages();
  Messages(std::unique_ptr<Communication> communication, std::vector<WorkPtr> works, std::vector<at::Tensor> tensors);
  /// Waits, and swallows errors. While an exception unwinds it does not wait: the other ranks may wait for this one.
  ~Messages();
  Messages(const Messages&) = delete;
  Messages& operator=(const Messages&) = delete;

  /// Returns when all are sent and received. The second call does nothing.
  /// Throws: what the backend throws. c10::DistBackendError from threads, where a rank is gone, c10::ValueError where sizes
  /// differ. The other messages are then dropped.
  void wait();

 private:
  std::unique_ptr<Communication> communication_;  // null once it has ended, and where there is none
  std::vector<WorkPtr> works_;
  std::vector<at::Tensor> tensors_;
};

/// Starts all and returns. Every member of the group calls it, those without a message too. Both ends of a message name it in the same
/// exchange: the n-th of one is the n-th of the other. A pair's two ends name the same number of messages, of the same bytes.
///
/// Counted as one "all_to_all" by a rank that sends or receives anything.
/// Throws: c10::ValueError, before the first message, for a tensor that is empty, not contiguous or not on `device`, and for a message to
/// oneself or to no member. Cost: no copies, but for threads one of what is sent.
///
/// `by_all`: false where members without a message may stay away, as ranks outside both of two meshes do. Then the order of calls is
/// not checked, and connect() (group_backend.h) has been called on all members before.
std::shared_ptr<Messages> exchange(const Group& group, c10::Device device, std::vector<Message> sends,
                                   std::vector<Message> receives, bool by_all = true);

}  // namespace shardwise
