// wrappers/embedding_plan/distinct_ids.h: how many different rows of a table a number of ids is expected to name. Pure.
//
//   8 rows, 8 uniform ids:        5.2 rows of [0,8), 2.6 of [0,4)
//   8 rows, 8 ids, skew 1:        4.4 rows of [0,8), 3.0 of [0,4)
#pragma once

#include "placements/box.h"

#include <cstdint>
#include <vector>

namespace shardwise::detail {

/// Rows are ordered by frequency. Each of `n_ids` ids independently names row k with probability p(k), proportional to (k + 1)^-skew. So at least one
/// id names row k with probability 1 - (1 - p(k))^n_ids.
///
/// The first rows are summed one by one. Later rows are summed in runs, each 8 % longer than the one before, by the row in the middle of the run. The
/// result is within 0.1 % of the sum over all rows.
class DistinctIds {
 public:
  /// Pre: n_rows > 0, skew >= 0, n_ids > 0. Cost: O(log n_rows); O(1) without skew.
  DistinctIds(int64_t n_rows, double skew, double n_ids);

  /// The expected number of distinct rows within [rows.begin, rows.end). Parts add up to the whole. Cost: O(log log n_rows).
  double within(Interval rows) const { return below(rows.end) - below(rows.begin); }
  double all() const { return below(n_rows_); }

 private:
  double below(int64_t row) const;

  int64_t n_rows_;
  double uniform_ = 0;             // expected per row, if all rows are equally frequent
  std::vector<int64_t> ends_;      // of the runs
  std::vector<double> until_end_;  // rows expected before each end
};

}  // namespace shardwise::detail
