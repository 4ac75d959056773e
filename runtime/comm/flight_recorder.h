// runtime/comm/flight_recorder.h: the last communications of each rank of this process, to find the cause of a hang.
//
// Always on. Each rank has a recorder, whether it is a process or a thread. flight_dump.h writes the recorders to files.
#pragma once

#include "runtime/comm/comm_thread.h"
#include "runtime/comm/events.h"
#include "runtime/comm/group.h"

#include <array>
#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace shardwise {

class World;

/// How many communications a rank has begun with a set of ranks. All members count the same calls, so different counts mean that ranks have
/// diverged.
struct GroupCalls {
  std::vector<int64_t> ranks;  // by group order
  std::atomic<uint64_t> n_calls{0};
};

/// One communication as one rank sees it. Times are of c10::getApproximateTime(); 0 means that it has not happened.
struct FlightRecord {
  enum class Outcome : uint8_t { kUnderWay, kDone, kFailed };
  static constexpr size_t kOpBytes = 69;  // the record has no padding

  uint64_t number = 0;                // among the rank's communications, from 1
  uint64_t call = 0;                  // among those with this group, from 1; 0 if members may stay away
  const GroupCalls* group = nullptr;  // lives as long as the process
  const char* name = nullptr;         // "all_reduce"; lives as long as the process
  uint64_t begin = 0;
  uint64_t waits_since = 0;  // 0 while no thread waits for it
  uint64_t end = 0;
  int64_t bytes_sent = 0;
  int64_t bytes_received = 0;
  Outcome outcome = Outcome::kUnderWay;
  int8_t dtype = -1;  // a c10::ScalarType
  bool is_asked_for = true;
  std::array<char, kOpBytes> op = {};  // the operator that needs it, or ""; cut to the first bytes
};

/// The last communications of one rank. The rank's threads write without a lock; other threads may read at any time.
///
/// Cost of a communication: two counters, two readings of the processor's clock, and 18 words (benchmarks/flight_recorder.cpp).
class FlightRecorder {
 public:
  static constexpr uint64_t kRecords = 1024;

  explicit FlightRecorder(int64_t rank, bool is_thread = false)
      : rank_(rank), is_thread_(is_thread), slots_(std::make_unique<Slot[]>(kRecords)) {}
  C10_DISABLE_COPY_AND_ASSIGN(FlightRecorder);

  /// The recorder of `thread`, which is this thread, and whose rank is `rank`. It lives as long as the process.
  static FlightRecorder& of_thread(CommThread& thread, int64_t rank) {
    return thread.rank == rank ? *thread.recorder : find_recorder(thread, rank);
  }
  static FlightRecorder& of_thread(int64_t rank) { return of_thread(comm_thread(), rank); }
  /// Restarts the recorder of this thread (or process), which is now a rank of a new world.
  static void begin_world(const std::shared_ptr<World>& world, bool is_thread);
  /// This thread is no rank any more, or will be another one.
  static void forget_thread();
  /// The recorders of the ranks that this process has now.
  static std::vector<FlightRecorder*> all();

  int64_t rank() const { return rank_; }
  /// Communications up to this number belong to an earlier world.
  uint64_t first() const { return first_.load(std::memory_order_relaxed); }
  /// The size of the rank's world; 0 if unknown.
  int64_t n_ranks() const { return n_ranks_.load(std::memory_order_relaxed); }
  bool is_thread() const { return is_thread_; }
  /// The thread (a pthread_t) that began the last communication, or the world if there is none.
  uint64_t thread() const { return thread_.load(std::memory_order_relaxed); }

  /// A record in atomic words, which readers may see half-written. The first is the number, or kBusy while the record is written. The outcome is
  /// stored in the end's lowest bit: 1 if it failed.
  using Slot = std::array<std::atomic<uint64_t>, sizeof(FlightRecord) / sizeof(uint64_t)>;
  /// A communication that has begun. Once its slot in the ring has been reused, changes to it are dropped.
  struct Begun {
    Slot* slot;
    uint64_t number;
    uint64_t call;
    uint64_t begin;
    const GroupCalls* group;
  };
  /// Begins a communication of `thread`, which is this thread, with the group.
  Begun begin(CommThread& thread, const Group& group, const CommCall& call);
  /// A communication that begins now and has no record.
  static Begun unrecorded();
  /// Notes that a thread waits for it since `since`; 0: no thread waits any more.
  static void set_waiting(const Begun& begun, uint64_t since);
  /// Notes that it has ended or failed.
  static void set_ended(const Begun& begun, uint64_t end, bool is_done);

  /// Keeps the details of a communication, which need a lock and memory.
  void add_details(std::shared_ptr<const CommEvent> event);

  /// The oldest first, without records that are just being written.
  std::vector<FlightRecord> records() const;
  /// The records that a thread waits for now.
  std::vector<FlightRecord> waits() const;
  /// Nothing if the record has been overwritten, a thousand communications later.
  std::optional<FlightRecord> find(uint64_t number) const;
  std::vector<const GroupCalls*> groups() const;
  /// The events with details, by their numbers. Only their texts may be read, because they may be under way.
  std::map<uint64_t, std::shared_ptr<const CommEvent>> details() const;

 private:
  static constexpr uint64_t kBusy = ~uint64_t{0};

  static FlightRecorder& find_recorder(CommThread& thread, int64_t rank);
  /// Around fork(): no other thread holds a lock of the recorders meanwhile, because in the child it would stay locked.
  static void lock_all();
  static void unlock_all();
  /// The recorders of all ranks that this process has had.
  struct Recorders;
  static Recorders& recorders();
  static FlightRecorder& recorder_of(bool is_thread, int64_t rank);
  GroupCalls& calls_of(CommThread& thread, const Group& group);
  GroupCalls& find_calls(CommThread& thread, const Group& group);
  void enter(const std::shared_ptr<World>& world);
  bool read(uint64_t number, FlightRecord& record) const;

  const int64_t rank_;
  const bool is_thread_;
  std::atomic<int64_t> n_ranks_{0};
  std::atomic<uint64_t> thread_{0};
  std::atomic<uint64_t> n_begun_{0};
  std::atomic<uint64_t> first_{0};
  const std::unique_ptr<Slot[]> slots_;
  mutable std::mutex mutex_;  // protects the members below
  std::vector<std::unique_ptr<GroupCalls>> groups_;
  std::map<uint64_t, std::shared_ptr<const CommEvent>> details_;
  std::weak_ptr<World> world_;
};

}  // namespace shardwise
