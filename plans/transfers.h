// plans/transfers.h: the boxes that one rank sends and receives in a step of a plan. Pure.
#pragma once

#include "plans/plan.h"

namespace shardwise {

/// A box that goes between this rank and `rank` (itself for what it keeps), or that part of it which one round moves.
struct Transfer {
  int64_t rank = 0;
  int64_t piece = 0;  // of the source for a send, of the destination for what is received or kept
  Box box;
  int64_t from_piece = -1;  // what is kept: the source's piece
  int64_t term = 0;         // of what is received in a reduction: its place in the sum
};

/// One rank's part of an exchange or a reduction. Between two ranks both lists hold the same boxes in the same order.
struct Transfers {
  std::vector<Transfer> sends;     // by rank, then offset; without what is kept
  std::vector<Transfer> receives;  // by term, rank, then offset; with what is kept: each term covers all that is wanted
};

/// Of several holders of a box the one with the receiver's own coordinates on mesh dims that do not shard sends it, so that
/// messages stay within lines that change and replicas share the load; where the receiver is outside the source's mesh, its place in
/// its own mesh stands for the coordinates.
///
/// Pre:  the step is a kExchange or kReduce. Cost: O(boxes met + extents of the sharding mesh dims), no communication.
Transfers transfers(const Step& step, int64_t rank);

/// The boxes of `sends` with who gets them, in no order: what is counted needs none.
std::vector<OwnedBox> boxes_sent(const Step& step, int64_t rank);

/// The part of `box` that round `round` of `n_rounds` moves: slabs of its longest dim, of near equal height.
/// Pre: a box of at least one dim where there are several rounds.
Box part_of_round(const Box& box, int64_t round, int64_t n_rounds);

/// The coordinates in `from`'s grid that stand for `rank`, which need not be in it: its own, or those of its place in `to`'s
/// grid. Pre: `rank` is in one of them.
Dims coord_for(int64_t rank, const RankGrid& from, const RankGrid& to);

}  // namespace shardwise
