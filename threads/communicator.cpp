#include "threads/communicator.h"

#include "text/check.h"

#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

namespace shardwise {
namespace {

MessageEnd* find_other_end(Launch& launch, int64_t peer, bool is_send) {
  const auto found = std::ranges::find_if(
      launch.ends, [&](const MessageEnd& end) { return !end.is_done && end.peer == peer && end.is_send == is_send; });
  return found == launch.ends.end() ? nullptr : &*found;
}

}  // namespace

std::string describe(const Launch& launch) {
  if (launch.is_collective()) return fmt::format("{} ({})", launch.offer.op, launch.offer.detail);
  std::vector<std::string> ends;
  for (const MessageEnd& end : launch.ends)
    ends.push_back(fmt::format("{} {} member {}", end.detail, end.is_send ? "to" : "from", end.peer));
  return fmt::format("messages ({})", fmt::join(ends, ", "));
}

Communicator::Communicator(std::shared_ptr<ThreadRanks> program, std::vector<int64_t> ranks)
    : program_(std::move(program)),
      ranks_(std::move(ranks)),
      first_calls_(ranks_.size()),
      streams_(ranks_.size()),
      mailbox_(program_, ranks_) {}

bool Communicator::is_made() const { return !program_->is_strict() || std::ranges::count(first_calls_, nullptr) == 0; }

void Communicator::launch(int64_t member, const LaunchPtr& launch) {
  std::unique_lock lock(program_->mutex_);
  if (program_->is_strict() && !first_calls_[member]) {
    first_calls_[member] = launch;
    program_->wake_all();
  }
  const std::function<bool()> is_made = [this] { return this->is_made(); };
  program_->block(lock, {this, member, launch->offer.op, is_made}, std::chrono::milliseconds(0));
  if (!program_->is_strict())  // the others have given up
    SW_CHECK_WITH(DistBackendError, failure_.empty(), "[{}] rank {} was waiting, but {}", launch->offer.op,
                  ranks_[member], failure_);
  streams_[member].push_back(launch);
  run_ready();
  if (program_->is_strict()) program_->wake_all();  // they may wait for each other now
}

void Communicator::wait(int64_t member, const LaunchPtr& launch, std::chrono::milliseconds timeout) {
  std::unique_lock lock(program_->mutex_);
  const std::function<bool()> has_run = [&] { return launch->has_run; };
  program_->block(lock, {this, member, launch->offer.op, has_run}, timeout);
  TORCH_CHECK_VALUE(launch->mismatch.empty(), launch->mismatch);
}

void Communicator::run_ready() {
  bool has_more = true;
  while (has_more) {
    has_more = run_collective();
    for (int64_t member = 0; member < static_cast<int64_t>(streams_.size()); ++member) has_more |= run_messages(member);
  }
}

bool Communicator::run_collective() {
  const auto is_collective = [](const auto& stream) { return !stream.empty() && stream.front()->is_collective(); };
  if (!std::ranges::all_of(streams_, is_collective)) return false;
  const auto offers = std::make_shared<Offers>();
  for (const auto& stream : streams_) offers->by_member.push_back(stream.front()->offer);
  const Offer& first = offers->by_member.front();
  std::string mismatch;
  for (size_t i = 1; i < offers->by_member.size() && mismatch.empty(); ++i)
    if (const Offer& other = offers->by_member[i]; other.op != first.op || other.detail != first.detail)
      mismatch = fmt::format(
          "[{}] rank {} calls {} ({}), but rank {} calls {} ({}). All ranks of a group must make the same calls in "
          "the same order.",
          first.op, ranks_[0], first.op, first.detail, ranks_[i], other.op, other.detail);
  for (int64_t member = 0; member < static_cast<int64_t>(streams_.size()); ++member) {
    streams_[member].front()->offers = offers;
    streams_[member].front()->mismatch = mismatch;
    pop(member);
  }
  return true;
}

bool Communicator::run_messages(int64_t member) {
  if (streams_[member].empty() || streams_[member].front()->is_collective()) return false;
  const auto is_done = [&](int64_t of) {
    return std::ranges::all_of(streams_[of].front()->ends, &MessageEnd::is_done);
  };
  bool has_popped = false;
  for (MessageEnd& end : streams_[member].front()->ends) {
    if (end.is_done || streams_[end.peer].empty()) continue;
    MessageEnd* const other = find_other_end(*streams_[end.peer].front(), member, !end.is_send);
    if (!other) continue;
    (end.is_send ? other : &end)->tensor = (end.is_send ? &end : other)->tensor;
    end.is_done = other->is_done = true;
    if (!is_done(end.peer)) continue;
    pop(end.peer);
    has_popped = true;
  }
  if (!is_done(member)) return has_popped;
  pop(member);
  return true;
}

void Communicator::pop(int64_t member) {
  streams_[member].front()->has_run = true;
  streams_[member].pop_front();
  program_->changed_[ranks_[member]].notify_all();
}

std::vector<int64_t> Communicator::needed(int64_t member) const {
  std::vector<int64_t> needed;
  const auto n_members = static_cast<int64_t>(ranks_.size());
  if (!is_made()) {
    for (int64_t other = 0; other < n_members; ++other)
      if (!first_calls_[other]) needed.push_back(other);
    return needed;
  }
  if (streams_[member].empty()) return needed;
  const Launch& first = *streams_[member].front();
  if (first.is_collective()) {
    for (int64_t other = 0; other < n_members; ++other)
      if (streams_[other].empty() || !streams_[other].front()->is_collective()) needed.push_back(other);
    return needed;
  }
  for (const MessageEnd& end : first.ends)
    if (!end.is_done) needed.push_back(end.peer);
  return needed;
}

std::vector<int64_t> Communicator::needed_ranks(int64_t member) const {
  return c10::fmap(needed(member), [&](const int64_t other) { return ranks_[other]; });
}

std::string Communicator::first_call(int64_t member) const {
  const Launch& first = streams_[member].empty() ? *first_calls_[member] : *streams_[member].front();
  return fmt::format("{} of ranks {}", describe(first), ranks_);
}

std::shared_ptr<Communicator> Communicators::of(const std::vector<int64_t>& ranks) { return find_or_make({ranks, {}}); }

std::shared_ptr<Communicator> Communicators::of_pair(const std::vector<int64_t>& ranks, int64_t low, int64_t high) {
  return find_or_make({ranks, {ranks[low], ranks[high]}});
}

std::shared_ptr<Communicator> Communicators::find_or_make(const Key& key) {
  const std::lock_guard lock(mutex_);
  auto& found = by_ranks_[key];
  if (!found) found = std::make_shared<Communicator>(program_, key.second.empty() ? key.first : key.second);
  return found;
}

}  // namespace shardwise
