#include "runtime/comm/flight_recorder.h"

#include "runtime/comm/world.h"

#include <c10/util/ApproximateClock.h>

#include <pthread.h>

#include <algorithm>
#include <bit>

namespace shardwise {
namespace {

constexpr auto kRelaxed = std::memory_order_relaxed;
constexpr size_t kWaitsSince = offsetof(FlightRecord, waits_since) / sizeof(uint64_t);
constexpr size_t kEnd = offsetof(FlightRecord, end) / sizeof(uint64_t);
using Words = std::array<uint64_t, std::tuple_size_v<FlightRecorder::Slot>>;

}  // namespace

struct FlightRecorder::Recorders {
  std::mutex mutex;
  std::map<std::pair<bool, int64_t>, FlightRecorder*> by_rank;  // the bool: whether the rank is a thread
};

/// Never destroyed, because a backend's threads may outlive static objects.
FlightRecorder::Recorders& FlightRecorder::recorders() {
  static auto* const all = [] {
    ::pthread_atfork(&lock_all, &unlock_all, &unlock_all);
    return new Recorders;
  }();
  return *all;
}

FlightRecorder& FlightRecorder::recorder_of(bool is_thread, int64_t rank) {
  const std::lock_guard lock(recorders().mutex);
  auto& recorder = recorders().by_rank[{is_thread, rank}];
  if (!recorder) recorder = new FlightRecorder(rank, is_thread);
  return *recorder;
}

void FlightRecorder::lock_all() {
  recorders().mutex.lock();
  for (const auto& [key, recorder] : recorders().by_rank) recorder->mutex_.lock();
}

void FlightRecorder::unlock_all() {
  for (const auto& [key, recorder] : recorders().by_rank) recorder->mutex_.unlock();
  recorders().mutex.unlock();
}

FlightRecorder& FlightRecorder::find_recorder(CommThread& thread, int64_t rank) {
  forget_thread();
  thread.recorder = &recorder_of(World::is_thread(), rank);
  thread.rank = rank;
  return *thread.recorder;
}

void FlightRecorder::begin_world(const std::shared_ptr<World>& world, bool is_thread) {
  forget_thread();
  if (world) recorder_of(is_thread, world->rank()).enter(world);
}

void FlightRecorder::enter(const std::shared_ptr<World>& world) {
  const std::lock_guard lock(mutex_);
  if (world_.lock() == world) return;
  world_ = world;
  n_ranks_ = world->size();
  thread_ = static_cast<uint64_t>(pthread_self());
  first_ = n_begun_.load();
  details_.clear();
  for (const auto& group : groups_) group->n_calls = 0;
}

void FlightRecorder::forget_thread() {
  CommThread& thread = comm_thread();
  thread.recorder = nullptr;
  thread.rank = -1;
  thread.groups = {};
}

std::vector<FlightRecorder*> FlightRecorder::all() {
  std::vector<FlightRecorder*> result;
  const std::lock_guard lock(recorders().mutex);
  for (const auto& [key, recorder] : recorders().by_rank) {
    const std::lock_guard own(recorder->mutex_);
    if (!recorder->world_.expired()) result.push_back(recorder);
  }
  return result;
}

GroupCalls& FlightRecorder::calls_of(CommThread& thread, const Group& group) {
  if (thread.recorder == this)
    for (const KnownGroup& known : thread.groups)
      if (known.number == group.record->number()) return *known.calls;
  return find_calls(thread, group);
}

GroupCalls& FlightRecorder::find_calls(CommThread& thread, const Group& group) {
  const std::lock_guard lock(mutex_);
  auto known = std::ranges::find_if(groups_, [&](const auto& calls) { return calls->ranks == group.ranks; });
  if (known == groups_.end()) {
    groups_.push_back(std::make_unique<GroupCalls>(group.ranks));
    known = groups_.end() - 1;
  }
  if (thread.recorder == this) {
    thread.groups[thread.oldest_group] = {group.record->number(), known->get()};
    thread.oldest_group = (thread.oldest_group + 1) % thread.groups.size();
  }
  return **known;
}

FlightRecorder::Begun FlightRecorder::begin(CommThread& thread, const Group& group, const CommCall& call) {
  GroupCalls& calls = calls_of(thread, group);
  Begun begun{};
  if (call.by_all) {  // by one thread at a time, or other ranks could not follow the order
    begun.call = calls.n_calls.load(kRelaxed) + 1;
    calls.n_calls.store(begun.call, kRelaxed);
  }
  begun.number = n_begun_.fetch_add(1, kRelaxed) + 1;
  begun.slot = &slots_[begun.number % kRecords];
  begun.begin = c10::getApproximateTime();
  begun.group = &calls;
  FlightRecord record{.number = begun.number,
                      .call = begun.call,
                      .group = &calls,
                      .name = call.name,
                      .begin = begun.begin,
                      .bytes_sent = call.bytes_sent,
                      .bytes_received = call.bytes_received,
                      .dtype = call.dtype ? static_cast<int8_t>(*call.dtype) : int8_t{-1},
                      .is_asked_for = thread.program_asks()};
  std::strncpy(record.op.data(), thread.op, FlightRecord::kOpBytes - 1);
  const auto words = std::bit_cast<Words>(record);
  Slot& slot = *begun.slot;
  slot[0].store(kBusy, kRelaxed);
  std::atomic_thread_fence(std::memory_order_release);
  for (size_t i = 1; i < words.size(); ++i) slot[i].store(words[i], kRelaxed);
  slot[0].store(begun.number, std::memory_order_release);
  thread_.store(static_cast<uint64_t>(pthread_self()), kRelaxed);
  return begun;
}

FlightRecorder::Begun FlightRecorder::unrecorded() {
  static Slot none{kBusy};  // is the record of no number
  return {.slot = &none, .number = 0, .call = 0, .begin = c10::getApproximateTime(), .group = nullptr};
}

void FlightRecorder::set_waiting(const Begun& begun, uint64_t since) {
  Slot& slot = *begun.slot;
  if (slot[0].load(kRelaxed) == begun.number) slot[kWaitsSince].store(since, kRelaxed);
}

void FlightRecorder::set_ended(const Begun& begun, uint64_t end, bool is_done) {
  set_waiting(begun, 0);
  Slot& slot = *begun.slot;
  if (slot[0].load(kRelaxed) == begun.number) slot[kEnd].store(is_done ? (end + 1) & ~uint64_t{1} : end | 1, kRelaxed);
}

void FlightRecorder::add_details(std::shared_ptr<const CommEvent> event) {
  const std::lock_guard lock(mutex_);
  details_.emplace(event->number, std::move(event));
  if (details_.size() > kRecords) details_.erase(details_.begin());
}

bool FlightRecorder::read(uint64_t number, FlightRecord& record) const {
  const Slot& slot = slots_[number % kRecords];
  if (slot[0].load(std::memory_order_acquire) != number) return false;
  Words words;
  for (size_t i = 0; i < words.size(); ++i) words[i] = slot[i].load(kRelaxed);
  std::atomic_thread_fence(std::memory_order_acquire);
  if (slot[0].load(kRelaxed) != number) return false;
  record = std::bit_cast<FlightRecord>(words);
  // A time before `begin` belongs to an earlier record in this slot, whose thread was paused while it set the time.
  if (record.waits_since < record.begin) record.waits_since = 0;
  if (record.end < record.begin) record.end = 0;
  using enum FlightRecord::Outcome;
  record.outcome = record.end == 0 ? kUnderWay : (record.end & 1) == 0 ? kDone : kFailed;
  return true;
}

std::vector<FlightRecord> FlightRecorder::records() const {
  const uint64_t last = n_begun_.load();
  const uint64_t before = std::max(first_.load(), last > kRecords ? last - kRecords : 0);
  std::vector<FlightRecord> result;
  FlightRecord record;
  for (uint64_t number = before + 1; number <= last; ++number)
    if (read(number, record)) result.push_back(record);
  return result;
}

std::vector<FlightRecord> FlightRecorder::waits() const {
  auto result = records();
  std::erase_if(result, [](const FlightRecord& record) { return record.waits_since == 0; });
  return result;
}

std::optional<FlightRecord> FlightRecorder::find(uint64_t number) const {
  FlightRecord record;
  return read(number, record) ? std::optional(record) : std::nullopt;
}

std::vector<const GroupCalls*> FlightRecorder::groups() const {
  std::vector<const GroupCalls*> result;
  const std::lock_guard lock(mutex_);
  for (const auto& group : groups_)
    if (group->n_calls > 0) result.push_back(group.get());
  return result;
}

std::map<uint64_t, std::shared_ptr<const CommEvent>> FlightRecorder::details() const {
  const std::lock_guard lock(mutex_);
  return details_;
}

}  // namespace shardwise
