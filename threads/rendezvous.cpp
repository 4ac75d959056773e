#include "threads/rendezvous.h"

#include "text/check.h"

#include <c10/util/Exception.h>
#include <c10/util/ScopeExit.h>
#include <fmt/ranges.h>

namespace shardwise {

bool Membership::abort(int64_t rank, const std::string& reason) {
  const std::lock_guard lock(mutex_);
  if (!failure_.empty()) return false;
  failure_ = fmt::format("rank {} failed: {}", rank, reason);
  changed_.notify_all();
  return true;
}

void Membership::finish(int64_t rank) {
  const std::lock_guard lock(mutex_);
  is_finished_.at(rank) = true;
  changed_.notify_all();
}

struct Rendezvous::Round {
  explicit Round(size_t n_members) : offers(n_members) {}

  Offers offers;  // an empty op marks members that have not arrived
  size_t n_arrived = 0;
  size_t n_left = 0;
  std::string failure;
};

Rendezvous::Rendezvous(std::shared_ptr<Membership> membership, std::vector<int64_t> ranks)
    : membership_(std::move(membership)),
      ranks_(std::move(ranks)),
      open_round_(std::make_shared<Round>(ranks_.size())) {}

void Rendezvous::hold(int64_t index, Offer offer, const std::function<void(const Offers&)>& read,
                      std::chrono::milliseconds timeout) {
  const auto round = arrive(index, std::move(offer), timeout.count() < 0 ? membership_->timeout_ : timeout);
  const auto leave_last = c10::make_scope_exit([&] { leave(*round); });
  check_same_call(round->offers);
  read(round->offers);
}

std::shared_ptr<Rendezvous::Round> Rendezvous::arrive(int64_t index, Offer offer, std::chrono::milliseconds timeout) {
  std::unique_lock lock(membership_->mutex_);
  const auto round = open_round_;
  const std::string op = offer.op;
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  if (round->failure.empty()) {
    round->offers.at(index) = std::move(offer);
    ++round->n_arrived;
  }
  if (round->n_arrived == ranks_.size()) {
    open_round_ = std::make_shared<Round>(ranks_.size());
    membership_->changed_.notify_all();
  }
  while (round->n_arrived < ranks_.size()) {
    if (round->failure.empty()) round->failure = obstacle(*round);
    TORCH_CHECK_WITH(DistBackendError, round->failure.empty(),
                     fmt::format("[{}] rank {} was waiting, but {}", op, ranks_[index], round->failure));
    const bool is_late = membership_->changed_.wait_until(lock, deadline) == std::cv_status::timeout;
    if (is_late && round->n_arrived < ranks_.size() && round->failure.empty())
      round->failure =
          fmt::format("ranks {} did not come within {} ms. All ranks of a group must call its collectives.",
                      missing(*round), timeout.count());
  }
  return round;
}

void Rendezvous::leave(Round& round) {
  std::unique_lock lock(membership_->mutex_);
  if (++round.n_left == ranks_.size()) membership_->changed_.notify_all();
  membership_->changed_.wait(lock, [&] { return round.n_left == ranks_.size(); });
}

std::vector<int64_t> Rendezvous::missing(const Round& round) const {
  std::vector<int64_t> missing;
  for (size_t i = 0; i < ranks_.size(); ++i)
    if (round.offers[i].op.empty()) missing.push_back(ranks_[i]);
  return missing;
}

std::string Rendezvous::obstacle(const Round& round) const {
  if (!membership_->failure_.empty()) return membership_->failure_;
  for (const int64_t rank : missing(round))
    if (membership_->is_finished_[rank])
      return fmt::format("rank {} has finished and cannot take part. All ranks of the group {} must call it.", rank,
                         ranks_);
  return {};
}

void Rendezvous::check_same_call(const Offers& offers) const {
  for (size_t i = 1; i < offers.size(); ++i)
    SW_CHECK_VALUE(offers[i].op == offers[0].op && offers[i].detail == offers[0].detail,
                   "[{}] rank {} calls {} ({}), but rank {} calls {} ({}). All ranks of a group must make the same "
                   "calls in the same order.",
                   offers[0].op, ranks_[0], offers[0].op, offers[0].detail, ranks_[i], offers[i].op, offers[i].detail);
}

}  // namespace shardwise
