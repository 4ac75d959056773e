// kernels/bag_pool.h: sums, means and maxima of bags of rows, over the rows of this piece.
#pragma once

#include "kernels/rows.h"

namespace shardwise::kernels {

/// Row b of `results` [bags, width] (the table's element, contiguous) is bag b's sum, mean or maximum over its rows in this piece, for b
/// in [begin, end). A mean divides by all ids of the bag, other pieces' too, so that the pieces' results add up to it. A maximum is
/// `none` where other pieces have all rows of the bag, and 0 for a bag of padding alone; NaN is the largest. `chosen` [bags, width],
/// unless null, gets the index of the id that each maximum came from: the first of several, -1 without any.
/// Cost: one pass over the named rows, float32 (double) sums, no memory.
void pool(const Rows& table, const Ids& ids, const Bags& bags, Pooling pooling, double none, void* results,
          int64_t* chosen, int64_t begin, int64_t end);

/// What GradRows needs: bag_of[k] is the bag of id k, and factors[k] its weight in the bag's result (for means divided by the number of
/// ids that count). `factors`: float (double for double tables); may be null. For bags [begin, end).
void spread_bags(const Bags& bags, const Ids& ids, Pooling pooling, Element element, int64_t* bag_of, void* factors,
                 int64_t begin, int64_t end);

/// The gradient of the factor of id k: the dot product of its row and its bag's gradient, 0 for rows of other pieces and for `padding`;
/// the table's element. For k in [begin, end).
void dot_rows(const Rows& table, const Ids& ids, int64_t padding, const GradRows& grads, void* results, int64_t begin,
              int64_t end);

}  // namespace shardwise::kernels
