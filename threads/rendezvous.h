// threads/rendezvous.h: how ranks that are threads of one process meet in a collective.
//
// A collective is a round: each member offers its tensors, waits until all have arrived, reads the others' tensors, and waits until all
// have read. Waiting uses a condition variable. A rank that fails or finishes wakes the ranks that wait for it.
#pragma once

#include <ATen/core/Tensor.h>

#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

namespace shardwise {

/// The thread ranks of one program that still take part. Thread-safe.
class Membership {
 public:
  Membership(int64_t n_ranks, std::chrono::milliseconds timeout) : is_finished_(n_ranks, false), timeout_(timeout) {}

  /// Marks `rank` as failed: ranks that wait now or later throw `reason`. The first failure is kept; returns true for it.
  bool abort(int64_t rank, const std::string& reason);
  /// Marks `rank` as finished: ranks that wait for it throw.
  void finish(int64_t rank);

  int64_t size() const { return static_cast<int64_t>(is_finished_.size()); }

 private:
  friend class Mailbox;
  friend class Rendezvous;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::string failure_;  // empty if no rank has failed
  std::vector<bool> is_finished_;
  std::chrono::milliseconds timeout_;
};

/// The contribution of one rank to a round.
struct Offer {
  std::string op;      // "all_reduce"
  std::string detail;  // "sum of 6 Float": op and detail must be the same on all ranks
  std::vector<at::Tensor> tensors;
  std::vector<int64_t> send_counts;  // elements per member; all_to_all only
  std::vector<int64_t> receive_counts;
};
using Offers = std::vector<Offer>;  // by group order

/// The rounds of one group. Every member calls `hold` once per collective.
class Rendezvous {
 public:
  Rendezvous(std::shared_ptr<Membership> membership, std::vector<int64_t> ranks);

  /// Runs `read` on the offers of all members. The offered tensors do not change until all have read. A `timeout` below zero stands for the
  /// membership's.
  ///
  /// Throws: c10::ValueError, on all members, naming two whose calls differ; c10::DistBackendError if a member has failed or finished, or
  /// does not arrive within the timeout. After a round that failed to gather, the rendezvous cannot be used again.
  void hold(int64_t index, Offer offer, const std::function<void(const Offers&)>& read,
            std::chrono::milliseconds timeout = std::chrono::milliseconds(-1));

 private:
  struct Round;
  std::shared_ptr<Round> arrive(int64_t index, Offer offer, std::chrono::milliseconds timeout);
  void leave(Round& round);
  void check_same_call(const Offers& offers) const;
  /// The reason why `round` cannot complete, or "". Pre: the membership's mutex is held.
  std::string obstacle(const Round& round) const;
  std::vector<int64_t> missing(const Round& round) const;

  std::shared_ptr<Membership> membership_;
  std::vector<int64_t> ranks_;
  std::shared_ptr<Round> open_round_;
};

}  // namespace shardwise
