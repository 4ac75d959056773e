// threads/mailbox.h: delivers messages between ranks that are threads of one process.
#pragma once

#include "threads/thread_ranks.h"

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

/// The mailboxes of one group. The n-th message of a box goes to its n-th receive, whichever comes first. Thread-safe.
class Mailbox {
 public:
  struct Letter {
    std::optional<at::Tensor> tensor;  // nothing until it is sent
    std::string what;                  // the sender's text: "4 Byte for aten::embedding"
    uint64_t number = 0;               // among the messages sent, from 1
  };
  using LetterPtr = std::shared_ptr<Letter>;
  struct Box {  // indices in the group
    int64_t from;
    int64_t to;
    int tag;
    auto operator<=>(const Box&) const = default;
  };

  Mailbox(std::shared_ptr<ThreadRanks> program, std::vector<int64_t> ranks)
      : program_(std::move(program)), ranks_(std::move(ranks)) {}

  /// Stores a copy of `tensor`. Never waits.
  /// Throws: c10::DistBackendError if a rank has failed or the receiver has finished.
  void send(const Box& box, const at::Tensor& tensor);

  /// The next message of `box`, already sent or not. A message that is dropped unread counts as received.
  LetterPtr expect(const Box& box);

  /// Waits for `letter` of `box` and copies it into `to`. A `timeout` of zero stands for the program's.
  ///
  /// Throws: c10::ValueError with both ranks if the number or dtype of the elements differs; c10::DistBackendError if a rank has failed, or
  /// if the sender has finished, does not send within the timeout, or has sent a message of another exchange() (messages.h) instead.
  void receive(const Box& box, const LetterPtr& letter, const at::Tensor& to, std::chrono::milliseconds timeout);

 private:
  /// The first undelivered message of another exchange() from the sender of `box`; null if there is none. Pre: the program's mutex is
  /// held.
  const Letter* find_foreign(const Box& box) const;
  /// Throws "`waiting`, but <reason>" if `rank` or the whole program does not take part any more. Pre: the program's mutex is held.
  void check_present(const std::string& waiting, int64_t rank) const;

  std::shared_ptr<ThreadRanks> program_;
  std::vector<int64_t> ranks_;
  uint64_t n_sent_ = 0;
  std::map<Box, std::deque<LetterPtr>> sent_;      // sent, but no receive yet
  std::map<Box, std::deque<LetterPtr>> expected_;  // expected by a receive, but not sent yet
};

}  // namespace shardwise
