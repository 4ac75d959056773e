#include "threads/thread_ranks.h"

#include "text/check.h"
#include "threads/communicator.h"

#include <c10/util/Exception.h>
#include <c10/util/ScopeExit.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>

namespace shardwise {
namespace {

std::atomic<bool>& is_strict() {
  static std::atomic<bool> is_on = [] {
    const char* const value = std::getenv("SHARDWISE_THREADS");
    return value != nullptr && std::strcmp(value, "strict") == 0;
  }();
  return is_on;
}

}  // namespace

bool set_strict_threads(bool is_on) { return is_strict().exchange(is_on); }
bool strict_threads() { return is_strict().load(); }

bool ThreadRanks::abort(int64_t rank, const std::string& reason) {
  const std::lock_guard lock(mutex_);
  if (!failure_.empty()) return false;
  failure_ = fmt::format("rank {} failed: {}", rank, reason);
  wake_all();
  return true;
}

void ThreadRanks::finish(int64_t rank) {
  const std::lock_guard lock(mutex_);
  is_finished_.at(rank) = true;
  wake_all();
  const auto dropped = std::ranges::find(dropped_, rank, &std::pair<int64_t, std::string>::first);
  SW_CHECK_VALUE(dropped == dropped_.end() || !failure_.empty(),
                 "[threads] rank {} never waited for its {}, so it is unknown when its tensors have been read and "
                 "written. Call wait() on the Work.",
                 rank, dropped->second);
}

void ThreadRanks::note_dropped(int64_t rank, const std::string& call) {
  const std::lock_guard lock(mutex_);
  if (failure_.empty()) dropped_.emplace_back(rank, call);
}

void ThreadRanks::block(std::unique_lock<std::mutex>& lock, const Wait& wait, std::chrono::milliseconds timeout) {
  if (timeout.count() <= 0) timeout = timeout_;
  const int64_t rank = wait.communicator->ranks_[wait.member];
  const auto place = waits_.emplace(waits_.end(), rank, &wait);
  const auto leave = c10::make_scope_exit([&] { waits_.erase(place); });
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  bool is_late = false;
  while (!wait.is_over()) {
    std::vector<Place> path{{wait.communicator, wait.member}};
    std::string why = wait.communicator->failure_;
    if (why.empty()) why = failure_.empty() ? obstacle(path) : failure_;
    if (why.empty() && is_late)
      why = fmt::format("ranks {} did not come within {} ms. All ranks of a group must call its collectives.",
                        wait.communicator->needed_ranks(wait.member), timeout.count());
    if (!is_strict_) wait.communicator->failure_ = why;  // strict members may still exchange messages with others
    SW_CHECK_WITH(DistBackendError, why.empty(), "[{}] rank {} was waiting, but {}", wait.op, rank, why);
    is_late = changed_[rank].wait_until(lock, deadline) == std::cv_status::timeout;
  }
}

void ThreadRanks::wake_all() {
  for (auto& changed : changed_) changed.notify_all();
}

/// A launch needs other members at the head of their streams, so it is stuck if one of them is stuck.
std::string ThreadRanks::obstacle(std::vector<Place>& path) const {
  const auto [communicator, own] = path.back();
  for (const int64_t member : communicator->needed(own)) {
    const int64_t rank = communicator->ranks_[member];
    Place next{communicator, member};
    if (!communicator->has_launched(member)) {  // the rank's thread has to call
      if (is_finished_[rank])
        return fmt::format("rank {} has finished and cannot take part. All ranks of the group {} must call it.", rank,
                           communicator->ranks_);
      if (!is_strict_) continue;  // a rank may have other threads, which the order of calls does not bind
      const auto found = std::ranges::find(waits_, rank, &std::pair<int64_t, const Wait*>::first);
      if (found == waits_.end() || found->second->is_over()) continue;
      next = {found->second->communicator, found->second->member};
    }
    if (std::ranges::count(path, next)) return cycle({std::ranges::find(path, next), path.end()});
    path.push_back(next);
    if (std::string why = obstacle(path); !why.empty()) return why;
    path.pop_back();
  }
  return {};
}

std::string ThreadRanks::cycle(const std::vector<Place>& path) const {
  std::vector<std::string> parts;
  for (const auto& [communicator, member] : path)
    parts.push_back(fmt::format("rank {} is in {}", communicator->ranks_[member], communicator->first_call(member)));
  return fmt::format(
      "the ranks wait for each other: {}. All ranks of a group must make the same calls in the same order.",
      fmt::join(parts, ", "));
}

}  // namespace shardwise
