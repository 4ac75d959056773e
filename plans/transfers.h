// plans/transfers.h: the boxes that one rank sends and receives in a step of a plan. Pure.
#pragma once

#include "plans/plan.h"

namespace shardwise {

/// A box (or the part of it that one round moves) that goes between this rank and `rank`. A box that stays has `rank` = this rank.
struct Transfer {
  int64_t rank = 0;
  int64_t piece = 0;  // of the source for a send, of the destination for a receive
  Box box;
  int64_t from_piece = -1;  // for a box that stays: the source's piece
  int64_t term = 0;         // for a box received in a reduction: its place in the sum
};

/// One rank's part of an exchange or a reduction. The sender's and the receiver's lists have the same boxes in the same order.
struct Transfers {
  std::vector<Transfer> sends;     // by rank, then offset; without boxes that stay
  std::vector<Transfer> receives;  // by term, rank, then offset; with boxes that stay: a term covers all wanted boxes
};

/// If several ranks hold a box, the sender is the one whose coordinates equal the receiver's on every mesh dim that does not shard. So
/// messages stay within the lines of the mesh that change, and replicas share the load. A receiver outside the source's mesh takes the
/// coordinates that coord_for() gives.
///
/// Pre: the step is a kExchange or kReduce. Cost: O(boxes met + extents of the sharding mesh dims), no communication.
Transfers transfers(const Step& step, int64_t rank);

/// The boxes of `sends` with their receivers, unordered: callers only count them.
std::vector<OwnedBox> boxes_sent(const Step& step, int64_t rank);

/// The part of `box` that round `round` of `n_rounds` moves: a slab of its longest dim. All slabs have nearly equal height.
/// Pre: the box has at least one dim if there are several rounds.
Box part_of_round(const Box& box, int64_t round, int64_t n_rounds);

/// The coordinates in the grid `from` that stand for `rank`: its own if it is in `from`; otherwise those at its index in `to`, modulo the
/// size of `from`. Pre: `rank` is in one of the grids.
Dims coord_for(int64_t rank, const RankGrid& from, const RankGrid& to);

}  // namespace shardwise
