// runtime/threads/mailbox.h: where ranks that are threads of one process leave messages for each other.
#pragma once

#include "runtime/threads/rendezvous.h"

#include <ATen/core/Tensor.h>

#include <chrono>
#include <compare>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace shardwise {

/// One group's mailboxes. The n-th message of a box is for its n-th receive, whichever comes first. Thread-safe.
class Mailbox {
 public:
  struct Letter {
    std::optional<at::Tensor> tensor;  // none until it is sent
    std::string what;                  // "4 Byte for aten::embedding", as the sender says
    uint64_t number = 0;               // among the messages that were sent, from 1
  };
  using LetterPtr = std::shared_ptr<Letter>;
  struct Box {  // indices in the group
    int64_t from;
    int64_t to;
    int tag;
    auto operator<=>(const Box&) const = default;
  };

  Mailbox(std::shared_ptr<Membership> membership, std::vector<int64_t> ranks)
      : membership_(std::move(membership)), ranks_(std::move(ranks)) {}

  /// Leaves a copy of `tensor`. Never waits.
  /// Throws: c10::DistBackendError where a rank has failed or the receiver has finished.
  void send(const Box& box, const at::Tensor& tensor);

  /// The next message of `box`, already sent or not. One that is dropped unread counts as received.
  LetterPtr expect(const Box& box);

  /// Waits for `letter` of `box` and copies it into `to`; `timeout` of zero is the membership's.
  ///
  /// Throws: c10::ValueError with both ranks where number or dtype of the elements differ; c10::DistBackendError where a
  /// rank failed, or the sender has finished, does not send within the time-out, or has sent a message of another exchange() (messages.h)
  /// in its place.
  void receive(const Box& box, const LetterPtr& letter, const at::Tensor& to, std::chrono::milliseconds timeout);

 private:
  /// The first message of another exchange() that lies here from the sender of `box`; null where there is none. Pre: as below.
  const Letter* find_foreign(const Box& box) const;
  /// Throws "`waiting`, but why" where `rank`, or the whole program, takes part no more. Pre: the membership's mutex is held.
  void check_present(const std::string& waiting, int64_t rank) const;

  std::shared_ptr<Membership> membership_;
  std::vector<int64_t> ranks_;
  uint64_t n_sent_ = 0;
  std::map<Box, std::deque<LetterPtr>> sent_;      // nobody expects them yet
  std::map<Box, std::deque<LetterPtr>> expected_;  // nobody has sent them yet
};

}  // namespace shardwise
