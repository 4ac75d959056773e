// runtime/threads/communicator.h: what the calls on one group wait for over NCCL, for ranks that are threads of one process.
//
// The members' first calls make the communicator together. Then each member has a stream of launches: collectives, or sends and
// receives that go together. Launching waits for nobody. A launch runs when it is the first of its stream and so are those that it
// belongs to: the same collective of all other members, or each message's other end.
#pragma once

#include "runtime/threads/rendezvous.h"
#include "runtime/threads/strict_ranks.h"

#include <deque>
#include <map>
#include <memory>

namespace shardwise {

/// One end of a message.
struct MessageEnd {
  int64_t peer;  // its place in the communicator
  bool is_send;
  at::Tensor tensor;  // what is sent; of a receive what has arrived
  std::string detail;
  bool is_done = false;
};

struct Launch {
  Offer offer;                           // of a collective; of messages its op alone
  std::vector<MessageEnd> ends;          // none of a collective
  std::shared_ptr<const Offers> offers;  // all members', once a collective has run
  std::string mismatch;                  // where the members' calls differ: what was launched does not run then
  bool has_run = false;

  bool is_collective() const { return ends.empty(); }
};
using LaunchPtr = std::shared_ptr<Launch>;

/// Thread-safe.
class Communicator {
 public:
  Communicator(std::shared_ptr<StrictRanks> program, std::vector<int64_t> ranks);

  /// Puts `launch` at the end of the member's stream. The first call of a member returns when all have made theirs.
  /// Throws: c10::DistBackendError where one never will.
  void launch(int64_t member, const LaunchPtr& launch);

  /// Returns when `launch` of the member has run. `timeout` of zero is the program's.
  ///
  /// Throws: c10::ValueError, on all members, naming two whose calls differ; c10::DistBackendError where a rank that it needs failed,
  /// has finished, waits for this one in turn, or does not come within the time-out.
  void wait(int64_t member, const LaunchPtr& launch, std::chrono::milliseconds timeout);

  const std::vector<int64_t>& ranks() const { return ranks_; }
  StrictRanks& program() const { return *program_; }

 private:
  friend class StrictRanks;

  // Pre of all: the program's mutex is held.
  bool is_made() const;
  void run_ready();
  /// True where the members' first launches were one collective.
  bool run_collective();
  /// Sends and receives what the member's first launch can now; true where that ended a launch.
  bool run_messages(int64_t member);
  void pop(int64_t member);
  /// The members whose call or progress the first launch of `member`, or its first call, waits for.
  std::vector<int64_t> needed(int64_t member) const;
  std::vector<int64_t> needed_ranks(int64_t member) const;
  bool has_launched(int64_t member) const { return !streams_[member].empty(); }
  /// "all_reduce (sum of 6 Float) of ranks [0, 1]": the first launch of the member's stream, or its first call.
  std::string first_call(int64_t member) const;

  std::shared_ptr<StrictRanks> program_;
  std::vector<int64_t> ranks_;
  std::vector<LaunchPtr> first_calls_;  // by member; null until it has called
  std::vector<std::deque<LaunchPtr>> streams_;
};

/// "all_reduce (sum of 6 Float)", "messages (12 Byte to member 1, 8 Byte from member 2)".
std::string describe(const Launch& launch);

/// The communicators of one strict program, by their ranks: one for each group, one for each pair of a group whose messages are not
/// grouped. Thread-safe.
class Communicators {
 public:
  Communicators(int64_t n_ranks, std::chrono::milliseconds timeout)
      : program_(std::make_shared<StrictRanks>(n_ranks, timeout)) {}

  StrictRanks& program() const { return *program_; }
  std::shared_ptr<Communicator> of(const std::vector<int64_t>& ranks);
  /// Of the members `low` and `high` alone, low < high.
  std::shared_ptr<Communicator> of_pair(const std::vector<int64_t>& ranks, int64_t low, int64_t high);

 private:
  using Key = std::pair<std::vector<int64_t>, std::vector<int64_t>>;  // the group's ranks, the communicator's
  std::shared_ptr<Communicator> find_or_make(const Key& key);

  std::shared_ptr<StrictRanks> program_;
  std::mutex mutex_;
  std::map<Key, std::shared_ptr<Communicator>> by_ranks_;
};

}  // namespace shardwise
