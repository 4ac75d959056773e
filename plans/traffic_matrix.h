// plans/traffic_matrix.h: how many bytes go from which ranks to which others.
//
//   [8, 4] float32, Shard(0) -> Shard(1) on 2 ranks: 32 bytes from rank 0 to rank 1, and 32 back
#pragma once

#include "plans/plan.h"

#include <string>
#include <vector>

namespace shardwise {

/// Bytes between blocks of ranks. What stays on a rank is not counted; what stays within a block of several ranks is.
struct TrafficMatrix {
  std::vector<std::vector<int64_t>> blocks;  // ranks, in the order of the source's mesh, then the destination's others
  std::vector<int64_t> bytes;                // from block i to block j at i * blocks.size() + j
  std::vector<int64_t> bytes_along;  // per mesh dim of the source: between ranks whose coordinates differ there first
  std::vector<bool> crosses;         // per mesh dim of the source: whether the ranks of some message differ there
  int64_t bytes_across = 0;          // to or from ranks outside of the source's mesh
  int64_t n_senders_asked = 0;       // whose messages were counted; fewer than the ranks where figures are scaled up
  int64_t n_ranks = 0;

  int64_t at(size_t from, size_t to) const { return bytes[from * blocks.size() + to]; }
  int64_t total() const;
};

/// Every rank in one of at most `max_blocks` blocks of neighbours, of near equal numbers.
///
/// All-reduces count as rings along their mesh dim, as in traffic(). Where the messages are more than `max_messages`, those of
/// evenly spaced ranks stand for all: sums are then scaled up. Cost: O(messages).
TrafficMatrix traffic_matrix(const Plan& plan, int64_t max_blocks, int64_t max_messages = int64_t{1} << 21);
/// Of one step of it.
TrafficMatrix traffic_matrix(const Plan& plan, const Step& step, int64_t max_blocks,
                             int64_t max_messages = int64_t{1} << 21);

/// The same in at most `max_blocks` blocks.
TrafficMatrix folded(const TrafficMatrix& matrix, int64_t max_blocks);

/// What one rank sends another in a step; of an all-reduce what goes round the ring.
struct SentBox {
  int64_t from = 0, to = 0;
  Box box;
  int64_t n_bytes = 0;
};

/// By sender, receiver and offset: the first `limit` of them.
std::vector<SentBox> sent_boxes(const Plan& plan, const Step& step, int64_t limit);

}  // namespace shardwise
