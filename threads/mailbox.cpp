#include "threads/mailbox.h"

#include "runtime/comm/comm_scope.h"
#include "runtime/comm/tagged_messages.h"
#include "text/check.h"
#include "threads/thread_calls.h"

#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

namespace shardwise {
namespace {

/// Removes and returns the first of `box`'s letters; null if there is none.
Mailbox::LetterPtr take_first(std::map<Mailbox::Box, std::deque<Mailbox::LetterPtr>>& letters,
                              const Mailbox::Box& box) {
  const auto found = letters.find(box);
  if (found == letters.end()) return nullptr;
  auto letter = std::move(found->second.front());
  found->second.pop_front();
  if (found->second.empty()) letters.erase(found);
  return letter;
}

/// "4 Byte for aten::embedding": a text for this thread's end of a message.
std::string end_of(const at::Tensor& tensor) {
  const char* const op = CommScope::current_op();
  return describe(tensor) + (*op == '\0' ? "" : fmt::format(" for {}", op));
}

}  // namespace

void Mailbox::check_present(const std::string& waiting, int64_t rank) const {
  std::string obstacle = program_->failure_;
  if (obstacle.empty() && program_->is_finished_[rank])
    obstacle = fmt::format("rank {} has finished and cannot take part. Sends and receives must match.", rank);
  SW_CHECK_WITH(DistBackendError, obstacle.empty(), "{}, but {}", waiting, obstacle);
}

void Mailbox::send(const Box& box, const at::Tensor& tensor) {
  const at::Tensor copy = tensor.clone(at::MemoryFormat::Contiguous);
  const std::lock_guard lock(program_->mutex_);
  check_present(fmt::format("[send] rank {} was about to send", ranks_[box.from]), ranks_[box.to]);
  LetterPtr letter = take_first(expected_, box);
  if (!letter) sent_[box].push_back(letter = std::make_shared<Letter>());
  letter->tensor = copy;
  letter->what = end_of(copy);
  letter->number = ++n_sent_;
  program_->changed_[ranks_[box.to]].notify_all();
}

Mailbox::LetterPtr Mailbox::expect(const Box& box) {
  const std::lock_guard lock(program_->mutex_);
  LetterPtr letter = take_first(sent_, box);
  if (!letter) expected_[box].push_back(letter = std::make_shared<Letter>());
  return letter;
}

/// All ranks start their exchanges in the same order. So if a message is here while an earlier one is missing, it belongs to a call that
/// this rank never made, or made at another point.
const Mailbox::Letter* Mailbox::find_foreign(const Box& box) const {
  if (box.tag < kFirstMessageTag) return nullptr;
  const Letter* first = nullptr;
  for (auto found = sent_.lower_bound({box.from, box.to, kFirstMessageTag});
       found != sent_.end() && found->first.from == box.from && found->first.to == box.to; ++found)
    if (const Letter& letter = *found->second.front(); !first || letter.number < first->number) first = &letter;
  return first;
}

void Mailbox::receive(const Box& box, const LetterPtr& letter, const at::Tensor& to,
                      std::chrono::milliseconds timeout) {
  const int64_t from_rank = ranks_[box.from];
  const int64_t own_rank = ranks_[box.to];
  if (timeout.count() == 0) timeout = program_->timeout_;
  const std::string waiting = fmt::format("[receive] rank {} was waiting", own_rank);
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  {
    std::unique_lock lock(program_->mutex_);
    while (!letter->tensor) {
      const Letter* const foreign = find_foreign(box);
      SW_CHECK_WITH(DistBackendError, !foreign,
                    "[receive] rank {} sends {} to rank {}, which expects {} of another call. All ranks "
                    "of a group must make the same calls in the same order.",
                    from_rank, foreign ? foreign->what : "", own_rank, end_of(to));
      check_present(waiting, from_rank);
      const bool is_late = program_->changed_[own_rank].wait_until(lock, deadline) == std::cv_status::timeout;
      SW_CHECK_WITH(DistBackendError, !is_late || letter->tensor,
                    "{}, but rank {} did not send within {} ms. Sends and receives must match.", waiting, from_rank,
                    timeout.count());
    }
  }
  receive_into(to, *letter->tensor, from_rank, own_rank);
}

}  // namespace shardwise
