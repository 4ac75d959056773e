// runtime/plan.h: what one rank must send, receive and reduce to move a tensor from one layout to another. Pure.
//
//   Shard(0) -> Shard(1), 4x4 over 2:   exchange: rank 0 sends [0:2, 2:4] to 1, receives [2:4, 0:2], copies [0:2, 0:2]
//   Partial  -> Shard(0):               exchange, adding what arrives
//   Partial  -> Replicate:              all-reduce
#pragma once

#include "placements/layout.h"

#include <string>
#include <vector>

namespace shardwise {

/// A box that moves between this rank and `rank` (itself for a local copy), from piece to piece.
struct Transfer {
  int64_t rank = 0;
  int64_t piece = 0;  // of the source for a send, of the destination for a receive
  Box box;
  bool combines = false;  // what arrives is reduced into the piece rather than stored
};

/// One all-to-all-v. Under a reduction the first contributor's boxes are stored, the others' combined in order.
struct Exchange {
  int mesh_dim = -1;      // the group that communicates: one mesh dim's, or -1 for the whole mesh's
  bool is_local = false;  // no rank of the group moves anything: no message
  Reduce reduce = Reduce::kSum;
  int64_t n_averaged = 1;          // kAvg: divide by this
  std::vector<Transfer> sends;     // ordered by rank in the mesh, own part included
  std::vector<Transfer> receives;  // likewise; `piece` is this rank's destination piece
};

struct AllReduce {
  int mesh_dim = 0;
  Reduce reduce = Reduce::kSum;
};

/// One rank's part, in the order of the members.
struct Plan {
  explicit Plan(Layout layout) : middle(std::move(layout)) {}

  bool is_noop = false;  // the pieces stay as they are
  std::vector<AllReduce> reduces_before;
  bool exchanges = false;
  Exchange exchange;  // from the source's pieces to the middle's
  Layout middle;
  std::vector<AllReduce> reduces_after;
  std::vector<std::pair<int, Reduce>> to_partial;  // mesh dims whose replicas become Partial, without messages
};

/// Plans the move of `rank`'s part. Every byte of a destination box that the rank does not hold already is received once, from
/// the nearest holder: the byte minimum wherever nothing is Partial. A pure function; ranks of one mesh plan matching parts.
///
/// Pre:    both layouts have the same sizes and the same grid.
/// Cost:   O(ranks * boxes met), no communication.
Plan plan(const Layout& source, const Layout& destination, int64_t rank);

}  // namespace shardwise
