// wrappers/distributed_embedding/request_exchange.h: each rank requests rows from the other ranks, in one message per pair.
//
// A receiver must know the length of a message in advance. Both ends of a pair remember the number of rows in the last message and make the next one
// a little longer; its first words give the actual number. Rows that do not fit follow in a second message, whose length both ends then know, and the
// next message is longer. So a step similar to the previous one takes one exchange.
//
// A rank whose input is wrong sends its error in place of rows, and all ranks throw that error. The first words also identify the lookup (StepFacts),
// and all ranks compare them.
#pragma once

#include "runtime/comm/agreement.h"
#include "runtime/comm/messages.h"
#include "wrappers/distributed_embedding/row_requests.h"
#include "wrappers/distributed_embedding/step_facts.h"

namespace shardwise {

/// A place for rows of this rank in another rank's memory.
struct PlaceThere {
  int64_t block = -1;  // its name (peer_memory.h); -1: none, so rows are sent
  int64_t first_row = 0;
};

/// The rows of this rank's blocks that all ranks request.
struct IncomingRows {
  std::vector<at::Tensor> rows;  // by lane: int32 or int64 [n], requests of rank 0 first, ascending within a rank
  std::vector<std::vector<int64_t>> counts;       // by lane and rank
  std::vector<std::vector<int64_t>> firsts;       // by lane and rank: where a rank's requests begin
  std::vector<std::vector<PlaceThere>> arrivals;  // by lane and rank: where a rank wants its rows

  template <class Visit>
  void for_each_tensor(const Visit& visit) {
    for (at::Tensor& each : rows) visit(each);
  }
};

class RequestExchange {
  /// A request to another rank: a head and the rows. `first` holds as many rows as it has room for.
  struct Outgoing {
    int64_t n_rows = 0;
    at::Tensor first, rest;
  };

 public:
  /// Pre: `lanes` outlives this object.
  explicit RequestExchange(const TableLanes& lanes);

  /// The first messages of one step, while they are being sent. Steps are finished in the order in which they were started.
  class Step {
   public:
    /// Collective. Throws: on all ranks the error of the first rank with a wrong input; as check_alike().
    IncomingRows finish(const RowRequests& requests);

   private:
    friend class RequestExchange;
    RequestExchange* exchange_ = nullptr;
    RankError error_;
    OwnFacts own_;
    std::vector<int64_t> arrivals_;       // by lane
    std::vector<int64_t> received_room_;  // rows per message, by rank
    std::vector<Outgoing> sent_;          // by rank
    std::vector<at::Tensor> received_;    // by rank
    std::shared_ptr<Messages> messages_;
  };

  /// Sends this rank's requests, or its error, to all ranks. `arrivals`: the names of the memory for the rows, by lane; none with an error.
  /// Collective.
  Step start(const RowRequests& requests, std::vector<int64_t> arrivals, const RankError& error, OwnFacts own);

 private:
  template <class Word>
  Outgoing outgoing(const Step& step, const RowRequests& requests, int64_t rank) const;
  template <class Word>
  IncomingRows read(Step& step, const RowRequests& requests);
  int64_t n_rows(const std::vector<int64_t>& head) const;
  /// The type of this rank's error and the facts; then, for each lane, the number of rows that it requests from `rank`, and the place for them.
  std::vector<int64_t> head_for(const Step& step, const RowRequests& requests, int64_t rank) const;
  int64_t head_words() const { return kCounts + kLaneWords * static_cast<int64_t>(lanes_->lanes.size()); }
  at::Tensor words(int64_t n) const;

  static constexpr int64_t kCounts = 1 + StepFacts::kSize;
  static constexpr int64_t kLaneWords = 3;  // number of rows, name of the memory, first row there
  static int64_t count_of(const std::vector<int64_t>& head, size_t lane) { return head[kCounts + kLaneWords * lane]; }

  const TableLanes* lanes_;
  at::ScalarType word_;
  std::vector<int64_t> sent_room_, received_room_;  // of the next step's messages
};

}  // namespace shardwise
