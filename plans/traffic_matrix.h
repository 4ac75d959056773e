// plans/traffic_matrix.h: how many bytes each rank, or block of ranks, sends to each other one.
//
//   [8, 4] float32, Shard(0) -> Shard(1) on 2 ranks: 32 bytes from rank 0 to rank 1, and 32 back
#pragma once

#include "plans/plan.h"

#include <vector>

namespace shardwise {

/// Bytes between blocks of ranks. Bytes that stay on a rank are not counted; bytes between ranks of one block are.
struct TrafficMatrix {
  std::vector<std::vector<int64_t>> blocks;  // ranks in the order of ranks_of(plan)
  std::vector<int64_t> bytes;                // from block i to block j at i * blocks.size() + j
  std::vector<int64_t> bytes_along;          // per mesh dim of the source: bytes between ranks that first differ there
  std::vector<bool> crosses;    // per mesh dim of the source: whether some message's two ranks differ there
  int64_t bytes_across = 0;     // to or from ranks outside the source's mesh
  int64_t n_senders_asked = 0;  // ranks whose messages were counted; fewer than n_ranks if scaled up
  int64_t n_ranks = 0;

  int64_t at(size_t from, size_t to) const { return bytes[from * blocks.size() + to]; }
  int64_t total() const;
};

/// Divides the ranks into at most `max_blocks` blocks of neighbours, of nearly equal size, and counts the bytes between the blocks.
///
/// All-reduces count as rings along their mesh dim, as in traffic(). If there are more than `max_messages` messages, only the messages of
/// evenly spaced ranks are counted and the sums are scaled up. Cost: O(messages).
TrafficMatrix traffic_matrix(const Plan& plan, int64_t max_blocks, int64_t max_messages = int64_t{1} << 21);
/// The matrix of one step of the plan.
TrafficMatrix traffic_matrix(const Plan& plan, const Step& step, int64_t max_blocks,
                             int64_t max_messages = int64_t{1} << 21);

/// The same matrix with at most `max_blocks` blocks.
TrafficMatrix folded(const TrafficMatrix& matrix, int64_t max_blocks);

/// A box that one rank sends another in a step. An all-reduce counts as the piece that goes round the ring.
struct SentBox {
  int64_t from = 0, to = 0;
  Box box;
  int64_t n_bytes = 0;
};

/// The first `limit` boxes that are sent in the step, ordered by sender, receiver and offset.
std::vector<SentBox> sent_boxes(const Plan& plan, const Step& step, int64_t limit);

}  // namespace shardwise
