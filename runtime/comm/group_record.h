// runtime/comm/group_record.h: counters and state of a group in this process, alive while somebody holds the group.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <thread>

namespace shardwise {

/// Shared by all copies of a Group. Thread-safe.
///
/// A group is lost after one of its communications failed: messages of other ranks may still be in flight and would meet the wrong call. All
/// groups are lost in a process that was forked from a rank: it has the rank's sockets but none of its threads, and its messages would be
/// taken for the rank's.
class GroupRecord {
 public:
  using Turn = std::unique_lock<std::recursive_mutex>;

  GroupRecord();
  GroupRecord(const GroupRecord&) = delete;
  GroupRecord& operator=(const GroupRecord&) = delete;

  /// A number that is unique among the groups of this process, from 1.
  uint64_t number() const { return number_; }
  /// The number of the next call that all members make, from 1; equal on all members. Messages are told apart by it.
  uint64_t next_call() { return n_calls_.fetch_add(1, std::memory_order_relaxed) + 1; }
  /// How many things of this kind were numbered before. Equal on all members if they create them in the same order.
  int64_t next_number(const std::string& kind);
  /// Waits until no other thread of this rank has a turn. `is_first`: whether this thread had the group's first turn.
  Turn turn(bool& is_first);

  /// Marks the group as lost: it takes no more messages. The first reason is kept.
  void lose(const std::string& why);
  /// False if no group of this process is lost. Cost: one read.
  static bool some_is_lost() { return some_is_lost_.load(std::memory_order_relaxed); }
  /// The reason why the group is lost; "" if it is not.
  std::string loss() const;

 private:
  static void lose_all_in_child();

  static std::atomic<bool> some_is_lost_;
  const uint64_t number_;
  std::atomic<uint64_t> n_calls_{0};
  std::recursive_mutex turns_;
  std::thread::id first_;
  mutable std::mutex mutex_;  // protects the members below
  std::map<std::string, int64_t> numbers_;
  std::string loss_;
};

}  // namespace shardwise
