#include "runtime/comm/flight_recorder.h"

#include "runtime/comm/world.h"

#include <c10/util/ApproximateClock.h>

#include <pthread.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <map>

namespace shardwise {
namespace {

/// All recorders. Never destroyed, because a backend's threads may outlive static objects.
struct Recorders {
  std::mutex mutex;
  std::map<std::pair<bool, int64_t>, FlightRecorder*> by_rank;  // the bool: whether the rank is a thread
};

Recorders& recorders() {
  static auto* const all = new Recorders;
  return *all;
}

constexpr size_t kOpWords = FlightRecord::kOpBytes / sizeof(uint64_t);
constexpr uint64_t kIsAskedFor = 1 << 8;  // stored in one word with the dtype

}  // namespace

/// A record in atomic words, which readers may see half-written.
struct alignas(64) FlightRecorder::Slot {
  using Word = std::atomic<uint64_t>;

  Word number{0};  // of the record; kBusy while it is written
  Word call{0};
  Word group{0};
  Word name{0};
  Word begin{0};
  Word waits_since{0};
  Word end{0};  // odd if it failed
  Word bytes_sent{0};
  Word bytes_received{0};
  Word kind{0};
  std::array<Word, kOpWords> op{};
};

namespace {

constexpr auto kRelaxed = std::memory_order_relaxed;

/// Stores the text with a zero at its end. Bytes after the zero are undefined.
void store_text(std::array<std::atomic<uint64_t>, kOpWords>& words, const char* text) {
  const size_t length = strnlen(text, FlightRecord::kOpBytes - 1);
  size_t i = 0;
  for (; (i + 1) * sizeof(uint64_t) <= length; ++i) {
    uint64_t word;
    std::memcpy(&word, text + i * sizeof word, sizeof word);
    words[i].store(word, kRelaxed);
  }
  uint64_t last = 0;
  std::memcpy(&last, text + i * sizeof last, length - i * sizeof last);
  words[i].store(last, kRelaxed);
}

}  // namespace

FlightRecorder::FlightRecorder(int64_t rank) : rank_(rank), slots_(std::make_unique<Slot[]>(kRecords)) {}

FlightRecorder::~FlightRecorder() = default;

FlightRecorder& FlightRecorder::find_recorder(CommThread& thread, int64_t rank) {
  const bool is_thread = World::is_thread();
  forget_thread();
  const std::lock_guard lock(recorders().mutex);
  auto& recorder = recorders().by_rank[{is_thread, rank}];
  if (!recorder) {
    recorder = new FlightRecorder(rank);
    recorder->is_thread_ = is_thread;
  }
  thread.recorder = recorder;
  thread.rank = rank;
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
  recorder->enter(world);
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
  const bool is_asked_for = thread.scope == nullptr || thread.outermost_cause == CommScope::Cause::kProgram;

  Slot& slot = *begun.slot;
  slot.number.store(kBusy, kRelaxed);
  std::atomic_thread_fence(std::memory_order_release);
  slot.call.store(begun.call, kRelaxed);
  slot.group.store(reinterpret_cast<uint64_t>(&calls), kRelaxed);
  slot.name.store(reinterpret_cast<uint64_t>(call.name), kRelaxed);
  slot.begin.store(begun.begin, kRelaxed);
  slot.waits_since.store(0, kRelaxed);
  slot.end.store(0, kRelaxed);
  slot.bytes_sent.store(static_cast<uint64_t>(call.bytes_sent), kRelaxed);
  slot.bytes_received.store(static_cast<uint64_t>(call.bytes_received), kRelaxed);
  slot.kind.store(static_cast<uint8_t>(call.dtype ? static_cast<int8_t>(*call.dtype) : int8_t{-1}) |
                      (is_asked_for ? kIsAskedFor : 0),
                  kRelaxed);
  store_text(slot.op, thread.op);
  slot.number.store(begun.number, std::memory_order_release);
  thread_.store(static_cast<uint64_t>(pthread_self()), kRelaxed);
  return begun;
}

void FlightRecorder::set_waiting(const Begun& begun, uint64_t since) {
  if (begun.slot->number.load(kRelaxed) == begun.number) begun.slot->waits_since.store(since, kRelaxed);
}

void FlightRecorder::set_ended(const Begun& begun, uint64_t end, bool is_done) {
  if (begun.slot->number.load(kRelaxed) != begun.number) return;
  begun.slot->waits_since.store(0, kRelaxed);
  begun.slot->end.store(is_done ? (end + 1) & ~uint64_t{1} : end | 1, kRelaxed);
}

void FlightRecorder::add_details(std::shared_ptr<const CommEvent> event) {
  const std::lock_guard lock(mutex_);
  details_.emplace(event->number, std::move(event));
  if (details_.size() > kRecords) details_.erase(details_.begin());
}

bool FlightRecorder::read(uint64_t number, FlightRecord& record) const {
  const Slot& slot = slots_[number % kRecords];
  if (slot.number.load(std::memory_order_acquire) != number) return false;
  record.number = number;
  record.call = slot.call.load(kRelaxed);
  record.group = reinterpret_cast<const GroupCalls*>(slot.group.load(kRelaxed));
  record.name = reinterpret_cast<const char*>(slot.name.load(kRelaxed));
  record.begin = slot.begin.load(kRelaxed);
  record.waits_since = slot.waits_since.load(kRelaxed);
  record.end = slot.end.load(kRelaxed);
  record.bytes_sent = static_cast<int64_t>(slot.bytes_sent.load(kRelaxed));
  record.bytes_received = static_cast<int64_t>(slot.bytes_received.load(kRelaxed));
  const uint64_t kind = slot.kind.load(kRelaxed);
  std::array<uint64_t, kOpWords> op;
  for (size_t i = 0; i < kOpWords; ++i) op[i] = slot.op[i].load(kRelaxed);
  std::atomic_thread_fence(std::memory_order_acquire);
  if (slot.number.load(kRelaxed) != number) return false;
  record.dtype = static_cast<int8_t>(kind & 0xFF);
  record.is_asked_for = (kind & kIsAskedFor) != 0;
  record.op = std::bit_cast<std::array<char, FlightRecord::kOpBytes>>(op);
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
