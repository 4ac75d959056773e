#include "runtime/comm/flight_recorder.h"

#include "runtime/comm/comm_cause.h"
#include "runtime/comm/comm_trace.h"
#include "runtime/comm/world.h"

#include <c10/util/ApproximateClock.h>

#include <pthread.h>

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstring>
#include <map>

namespace shardwise {
namespace {

/// All recorders. Never destroyed: a backend's threads may outlive the statics they use.
struct Recorders {
  std::mutex mutex;
  std::map<std::pair<bool, int64_t>, FlightRecorder*> by_rank;  // by whether the rank is a thread
};

Recorders& recorders() {
  static auto* const all = new Recorders;
  return *all;
}

/// What a thread found last. Groups and recorders are never freed.
struct Found {
  FlightRecorder* recorder = nullptr;
  int64_t rank = -1;
  std::array<GroupCalls*, 4> groups{};
  size_t oldest = 0;
};

thread_local Found found_last;

}  // namespace

static_assert(sizeof(FlightRecord) % sizeof(uint64_t) == 0 && std::is_trivially_copyable_v<FlightRecord>);

FlightRecorder& FlightRecorder::of_thread(int64_t rank) {
  if (found_last.rank == rank) return *found_last.recorder;
  const bool is_thread = World::is_thread();
  const std::lock_guard lock(recorders().mutex);
  auto& recorder = recorders().by_rank[{is_thread, rank}];
  if (!recorder) {
    recorder = new FlightRecorder(rank);
    recorder->is_thread_ = is_thread;
  }
  found_last = {recorder, rank};
  return *recorder;
}

void FlightRecorder::begin_world(const std::shared_ptr<World>& world, bool is_thread) {
  forget_thread();
  if (!world) return;
  FlightRecorder* recorder = nullptr;
  {
    const std::lock_guard lock(recorders().mutex);
    auto& known = recorders().by_rank[{is_thread, world->rank()}];
    if (!known) {
      known = new FlightRecorder(world->rank());
      known->is_thread_ = is_thread;
    }
    recorder = known;
  }
  recorder->begin(world);
}

void FlightRecorder::begin(const std::shared_ptr<World>& world) {
  const std::lock_guard lock(mutex_);
  if (world_.lock() == world) return;
  world_ = world;
  n_ranks_ = world->size();
  thread_ = static_cast<uint64_t>(pthread_self());
  first_ = n_begun_.load();
  notes_.clear();
  for (const auto& group : groups_) group->n_calls = 0;
}

void FlightRecorder::forget_thread() { found_last = {}; }

std::vector<FlightRecorder*> FlightRecorder::all() {
  std::vector<FlightRecorder*> result;
  const std::lock_guard lock(recorders().mutex);
  for (const auto& [key, recorder] : recorders().by_rank) {
    const std::lock_guard own(recorder->mutex_);
    if (!recorder->world_.expired()) result.push_back(recorder);
  }
  return result;
}

GroupCalls& FlightRecorder::calls_of(const Group& group) {
  for (GroupCalls* known : found_last.groups)
    if (known != nullptr && known->ranks == group.ranks) return *known;
  const std::lock_guard lock(mutex_);
  auto known = std::ranges::find_if(groups_, [&](const auto& calls) { return calls->ranks == group.ranks; });
  if (known == groups_.end()) {
    groups_.push_back(std::make_unique<GroupCalls>(group.ranks));
    known = groups_.end() - 1;
  }
  if (found_last.recorder == this) {
    found_last.groups[found_last.oldest] = known->get();
    found_last.oldest = (found_last.oldest + 1) % found_last.groups.size();
  }
  return **known;
}

void FlightRecorder::add(const Group& group, bool by_all, FlightRecord& record) {
  GroupCalls& calls = calls_of(group);
  record.group = &calls;
  record.call = by_all ? calls.n_calls.fetch_add(1, std::memory_order_relaxed) + 1 : 0;
  record.number = n_begun_.fetch_add(1, std::memory_order_relaxed) + 1;
  record.is_asked_for = program_asks();
  const char* const op = CommScope::current_op();
  std::memcpy(record.op.data(), op, strnlen(op, FlightRecord::kOpBytes - 1));
  record.begin = c10::getApproximateTime();
  thread_.store(static_cast<uint64_t>(pthread_self()), std::memory_order_relaxed);

  Slot& slot = slots_[record.number % kRecords];
  const auto words = std::bit_cast<std::array<uint64_t, kWords>>(record);
  slot.number.store(kBusy, std::memory_order_relaxed);
  std::atomic_thread_fence(std::memory_order_release);
  for (size_t i = 0; i < kWords; ++i) slot.words[i].store(words[i], std::memory_order_relaxed);
  slot.number.store(record.number, std::memory_order_release);
}

FlightRecorder::Slot* FlightRecorder::slot_of(uint64_t number) {
  Slot& slot = slots_[number % kRecords];
  return slot.number.load(std::memory_order_relaxed) == number ? &slot
                                                               : nullptr;  // null where a later one took its place
}

void FlightRecorder::set_waiting(uint64_t number, uint64_t since) {
  constexpr size_t kWord = offsetof(FlightRecord, waits_since) / sizeof(uint64_t);
  if (Slot* const slot = slot_of(number)) slot->words[kWord].store(since, std::memory_order_relaxed);
}

void FlightRecorder::set_ended(uint64_t number, uint64_t end, FlightRecord::Outcome outcome) {
  constexpr size_t kWaits = offsetof(FlightRecord, waits_since) / sizeof(uint64_t);
  constexpr size_t kEnd = offsetof(FlightRecord, end) / sizeof(uint64_t);
  Slot* const slot = slot_of(number);
  if (slot == nullptr) return;
  const bool is_done = outcome == FlightRecord::Outcome::kDone;
  slot->words[kWaits].store(0, std::memory_order_relaxed);
  slot->words[kEnd].store(is_done ? (end + 1) & ~uint64_t{1} : end | 1, std::memory_order_relaxed);
}

void FlightRecorder::add_note(Note note) {
  const std::lock_guard lock(mutex_);
  notes_.push_back(std::move(note));
  if (notes_.size() > kRecords) notes_.pop_front();
}

bool FlightRecorder::read(uint64_t number, FlightRecord& record) const {
  const Slot& slot = slots_[number % kRecords];
  if (slot.number.load(std::memory_order_acquire) != number) return false;
  std::array<uint64_t, kWords> words;
  for (size_t i = 0; i < kWords; ++i) words[i] = slot.words[i].load(std::memory_order_relaxed);
  std::atomic_thread_fence(std::memory_order_acquire);
  if (slot.number.load(std::memory_order_relaxed) != number) return false;
  record = std::bit_cast<FlightRecord>(words);
  // A time before the beginning is that of an earlier record here, whose thread was stopped in the middle of setting it.
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

std::vector<FlightRecorder::Note> FlightRecorder::notes() const {
  const std::lock_guard lock(mutex_);
  return {notes_.begin(), notes_.end()};
}

}  // namespace shardwise
