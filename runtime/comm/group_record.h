// runtime/comm/group_record.h: what this process counts and knows of a group, as long as somebody holds the group.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <thread>

namespace shardwise {

/// Copies of a Group share it. Thread-safe.
class GroupRecord {
 public:
  using Turn = std::unique_lock<std::recursive_mutex>;

  GroupRecord();
  GroupRecord(const GroupRecord&) = delete;
  GroupRecord& operator=(const GroupRecord&) = delete;

  /// Another for each group of this process, from 1.
  uint64_t number() const { return number_; }
  /// The number of the next call of all members, from 1: the same on each. Messages are told apart by it.
  uint64_t next_call() { return n_calls_.fetch_add(1, std::memory_order_relaxed) + 1; }
  /// How many things of this kind were numbered before: equal on the members, if they make them in one order.
  int64_t next_number(const std::string& kind);
  /// Waits for the other threads of this rank that have a turn. `is_first`: this thread is the one that had the group's first turn.
  Turn turn(bool& is_first);

  /// The group takes no more messages. The first reason stays.
  void lose(const std::string& why);
  /// Why it takes none; "" where it does.
  std::string loss() const;

 private:
  const uint64_t number_;
  std::atomic<uint64_t> n_calls_{0};
  std::recursive_mutex turns_;
  std::thread::id first_;
  mutable std::mutex mutex_;  // of what follows
  std::map<std::string, int64_t> numbers_;
  std::string loss_;
};

}  // namespace shardwise
