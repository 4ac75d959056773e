// ops/support/dim_pieces.h: operators along a cut dim that look at each piece first and then at a few values per piece.
#pragma once

#include "runtime/api/dtensor.h"

namespace shardwise {

/// The same values laid out as `placements`, below autograd: no gradient is recorded.
at::Tensor moved_to(const at::Tensor& tensor, Placements placements);

/// Where `tensor` is cut along one dim: its pieces there, in order, this rank's among them.
struct DimPieces {
  at::Tensor tensor;  // as the operator can take it: no EnumerableShard, Partial only where it was asked for
  int64_t dim = 0;
  std::vector<Interval> intervals;  // of all pieces along the dim; one where nothing cuts it
  size_t own = 0;                   // this rank's

  bool is_cut() const { return intervals.size() > 1; }
  /// Placements of a tensor that has `lengths[i]` elements along the dim in the place of interval i, and is else laid out alike.
  Placements cut_to(const std::vector<int64_t>& lengths) const;
  /// The same with every rank of the cutting mesh dims having all of the dim.
  Placements whole() const;
  /// A tensor of this rank's `pieces` (none on a non-member), `length` long along the dim.
  at::Tensor wrapped(const Shards& pieces, int64_t length, Placements placements, at::ScalarType dtype) const;
};

/// `keeps_sums`: Partials of sum and avg stay. Throws: c10::IndexError for a dim that is none. Moves only what no piece can be of.
DimPieces pieces_along(const at::Tensor& tensor, int64_t dim, bool keeps_sums = false);

}  // namespace shardwise
