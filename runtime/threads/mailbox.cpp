#include "runtime/threads/mailbox.h"

#include "runtime/threads/thread_calls.h"

#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

namespace shardwise {
namespace {

/// The first of `box`'s letters, taken out, or null.
Mailbox::LetterPtr take_first(std::map<Mailbox::Box, std::deque<Mailbox::LetterPtr>>& letters,
                              const Mailbox::Box& box) {
  const auto found = letters.find(box);
  if (found == letters.end()) return nullptr;
  auto letter = std::move(found->second.front());
  found->second.pop_front();
  if (found->second.empty()) letters.erase(found);
  return letter;
}

}  // namespace

void Mailbox::check_present(const std::string& waiting, int64_t rank) const {
  std::string obstacle = membership_->failure_;
  if (obstacle.empty() && membership_->is_finished_[rank])
    obstacle = fmt::format("rank {} has finished and cannot take part. Both ends must name the message.", rank);
  TORCH_CHECK_WITH(DistBackendError, obstacle.empty(), fmt::format("{}, but {}", waiting, obstacle));
}

void Mailbox::send(const Box& box, const at::Tensor& tensor) {
  const at::Tensor copy = tensor.clone(at::MemoryFormat::Contiguous);
  const std::lock_guard lock(membership_->mutex_);
  check_present(fmt::format("[send] rank {} was about to send", ranks_[box.from]), ranks_[box.to]);
  LetterPtr letter = take_first(expected_, box);
  if (!letter) sent_[box].push_back(letter = std::make_shared<Letter>());
  letter->tensor = copy;
  membership_->changed_.notify_all();
}

Mailbox::LetterPtr Mailbox::expect(const Box& box) {
  const std::lock_guard lock(membership_->mutex_);
  LetterPtr letter = take_first(sent_, box);
  if (!letter) expected_[box].push_back(letter = std::make_shared<Letter>());
  return letter;
}

void Mailbox::receive(const Box& box, const LetterPtr& letter, const at::Tensor& to,
                      std::chrono::milliseconds timeout) {
  const int64_t from_rank = ranks_[box.from];
  const int64_t own_rank = ranks_[box.to];
  if (timeout.count() == 0) timeout = membership_->timeout_;
  const std::string waiting = fmt::format("[receive] rank {} was waiting", own_rank);
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  {
    std::unique_lock lock(membership_->mutex_);
    while (!letter->tensor) {
      check_present(waiting, from_rank);
      const bool is_late = membership_->changed_.wait_until(lock, deadline) == std::cv_status::timeout;
      TORCH_CHECK_WITH(DistBackendError, !is_late || letter->tensor,
                       fmt::format("{}, but rank {} did not send within {} ms. Both ends must name the message.",
                                   waiting, from_rank, timeout.count()));
    }
  }
  receive_into(to, *letter->tensor, from_rank, own_rank);
}

}  // namespace shardwise
