// wrappers/distributed_embedding/request_exchange.h: each rank tells the others which of their rows it asks for, in one message per pair.
//
// A receiver must know a message's length. Both ends of a pair remember how many rows the last ones named, and make the message a little
// longer than that: its first words say how many there are. What does not fit follows in a second message, whose length both then know, and
// the next one is longer. So steps like the one before take one exchange.
//
// A rank whose input is wrong says so in place of its rows, and all ranks throw its error. The first words say too which lookup they belong
// to (StepFacts), which all ranks compare.
#pragma once

#include "runtime/comm/agreement.h"
#include "runtime/comm/messages.h"
#include "wrappers/distributed_embedding/row_requests.h"
#include "wrappers/distributed_embedding/step_facts.h"

namespace shardwise {

/// The rows of this rank's blocks that all ranks ask for.
struct IncomingRows {
  std::vector<at::Tensor> rows;  // by lane: int32 or int64 [n], those of rank 0 first, ascending within a rank
  std::vector<std::vector<int64_t>> counts;  // by lane and rank
  std::vector<std::vector<int64_t>> firsts;  // by lane and rank: the first of a rank's

  template <class Visit>
  void for_each_tensor(const Visit& visit) {
    for (at::Tensor& each : rows) visit(each);
  }
};

class RequestExchange {
  /// What this rank asks of another: a head and the rows, of which `first` takes as many as it has room for.
  struct Outgoing {
    int64_t n_rows = 0;
    at::Tensor first, rest;
  };

 public:
  /// `lanes` outlives it.
  explicit RequestExchange(const TableLanes& lanes);

  /// The first messages of one step, under way. Steps are finished in the order in which they were started.
  class Step {
   public:
    /// Collective. Throws: on all ranks what the first rank with a wrong input has to say; as check_alike().
    IncomingRows finish(const RowRequests& requests);

   private:
    friend class RequestExchange;
    RequestExchange* exchange_ = nullptr;
    RankError error_;
    OwnFacts own_;
    std::vector<int64_t> received_room_;  // rows per message, by rank
    std::vector<Outgoing> sent_;          // by rank
    std::vector<at::Tensor> received_;    // by rank
    std::shared_ptr<Messages> messages_;
  };

  /// Collective: tells all ranks what this one asks for, or what is wrong.
  Step start(const RowRequests& requests, const RankError& error, OwnFacts own);

 private:
  template <class Word>
  Outgoing outgoing(const Step& step, const RowRequests& requests, int64_t rank) const;
  template <class Word>
  IncomingRows read(Step& step, const RowRequests& requests);
  int64_t n_rows(const std::vector<int64_t>& head) const;
  /// The type of this rank's error, the facts, and the rows of each lane that it asks `rank` for.
  std::vector<int64_t> head_for(const Step& step, const RowRequests& requests, int64_t rank) const;
  int64_t head_words() const { return kCounts + static_cast<int64_t>(lanes_->lanes.size()); }
  at::Tensor words(int64_t n) const;

  static constexpr int64_t kCounts = 1 + StepFacts::kSize;

  const TableLanes* lanes_;
  at::ScalarType word_;
  std::vector<int64_t> sent_room_, received_room_;  // of the next step
};

}  // namespace shardwise
