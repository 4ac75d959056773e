// threads/communicator.h: runs the calls on one group in NCCL's order, for ranks that are threads of one process.
//
// The first calls of strict members create the communicator together. Each member has a stream of launches. A launch is a collective, or a
// group of sends and receives. Launching does not wait. A launch runs when it is the first of its stream and its counterparts are the first
// of theirs: the same collective on all other members, or the other end of each message.
#pragma once

#include "threads/mailbox.h"
#include "threads/thread_calls.h"
#include "threads/thread_ranks.h"

#include <deque>
#include <map>
#include <memory>

namespace shardwise {

/// One end of a message.
struct MessageEnd {
  int64_t peer;  // the other end's index in the communicator
  bool is_send;
  at::Tensor tensor;  // the value to send, or the received value
  std::string detail;
  bool is_done = false;
};

struct Launch {
  Offer offer;                           // of a collective; for messages, only its op is set
  std::vector<MessageEnd> ends;          // empty for a collective
  std::shared_ptr<const Offers> offers;  // of all members, after a collective has run
  std::string mismatch;                  // set if the members' calls differ: the launch does not run then
  bool has_run = false;

  bool is_collective() const { return ends.empty(); }
};
using LaunchPtr = std::shared_ptr<Launch>;

/// Thread-safe.
class Communicator {
 public:
  Communicator(std::shared_ptr<ThreadRanks> program, std::vector<int64_t> ranks);

  /// Appends `launch` to the member's stream. A strict member's first call returns when all members have made theirs.
  /// Throws: c10::DistBackendError if one never will.
  void launch(int64_t member, const LaunchPtr& launch);

  /// Returns when the member's `launch` has run. A `timeout` of zero or less stands for the program's.
  ///
  /// Throws: c10::ValueError, on all members, naming two whose calls differ; c10::DistBackendError if a rank that it needs has failed or
  /// finished, waits for this one in turn, or does not arrive within the timeout.
  void wait(int64_t member, const LaunchPtr& launch, std::chrono::milliseconds timeout);

  const std::vector<int64_t>& ranks() const { return ranks_; }
  ThreadRanks& program() const { return *program_; }
  Mailbox& mailbox() { return mailbox_; }

 private:
  friend class ThreadRanks;

  // Pre for all of these: the program's mutex is held.
  bool is_made() const;
  void run_ready();
  /// Runs the members' first launches if all are collectives; returns whether it did.
  bool run_collective();
  /// Runs the sends and receives of the member's first launch that can run now. True if this completed a launch.
  bool run_messages(int64_t member);
  void pop(int64_t member);
  /// The members that the first launch of `member` (or its first call) waits for.
  std::vector<int64_t> needed(int64_t member) const;
  std::vector<int64_t> needed_ranks(int64_t member) const;
  bool has_launched(int64_t member) const { return !streams_[member].empty(); }
  /// "all_reduce (sum of 6 Float) of ranks [0, 1]": the first launch of the member's stream, or its first call.
  std::string first_call(int64_t member) const;

  std::shared_ptr<ThreadRanks> program_;
  std::vector<int64_t> ranks_;
  std::vector<LaunchPtr> first_calls_;  // by strict member; null until it has called
  std::vector<std::deque<LaunchPtr>> streams_;
  std::string failure_;  // of a wait that did not end, of ranks that are not strict: the later ones do not end either
  Mailbox mailbox_;      // for ranks that are not strict
};

/// "all_reduce (sum of 6 Float)", "messages (12 Byte to member 1, 8 Byte from member 2)".
std::string describe(const Launch& launch);

/// The communicators of one program: one for each group, and one for each pair of a group whose messages are not grouped. Thread-safe.
class Communicators {
 public:
  Communicators(int64_t n_ranks, std::chrono::milliseconds timeout, bool is_strict)
      : program_(std::make_shared<ThreadRanks>(n_ranks, timeout, is_strict)) {}

  ThreadRanks& program() const { return *program_; }
  std::shared_ptr<Communicator> of(const std::vector<int64_t>& ranks);
  /// The communicator of the members `low` and `high` of a group, low < high.
  std::shared_ptr<Communicator> of_pair(const std::vector<int64_t>& ranks, int64_t low, int64_t high);

 private:
  using Key = std::pair<std::vector<int64_t>, std::vector<int64_t>>;  // the ranks of the group and of the communicator
  std::shared_ptr<Communicator> find_or_make(const Key& key);

  std::shared_ptr<ThreadRanks> program_;
  std::mutex mutex_;
  std::map<Key, std::shared_ptr<Communicator>> by_ranks_;
};

}  // namespace shardwise
