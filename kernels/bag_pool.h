// kernels/bag_pool.h: sums, means and maxima of bags of rows, computed from the rows of one piece.
#pragma once

#include "kernels/rows.h"

namespace shardwise::kernels {

/// Writes row b of `results` [bags, width] (the table's element, contiguous) for b in [begin, end): the sum, mean or maximum of bag b's
/// rows in this piece. A mean divides by the number of all ids of the bag that count, including those of other pieces, so that the pieces'
/// results add up to the mean. A maximum is -infinity if all counting rows of the bag are in other pieces, and 0 for a bag of padding
/// alone; NaN is larger than any number. `chosen` [bags, width], unless null, gets the index of the id that each maximum came from: the first one
/// if there are several, -1 if there is none.
/// Cost: one pass over the named rows, float32 (double) sums, no memory.
void pool(const Rows& table, const Ids& ids, const Bags& bags, Pooling pooling, void* results, int64_t* chosen,
          int64_t begin, int64_t end);

/// Computes two inputs of GradRows for bags [begin, end): bag_of[k] is the bag of id k, and factors[k] the id's weight in the bag's result
/// (for means divided by the number of ids that count). `factors`: float (double for double tables); may be null.
void spread_bags(const Bags& bags, const Ids& ids, Pooling pooling, Element element, int64_t* bag_of, void* factors,
                 int64_t begin, int64_t end);

/// For k in [begin, end): the gradient of the factor of id k, which is the dot product of its row and its bag's gradient. 0 for rows of
/// other pieces and for `padding`. Results have the table's element.
void dot_rows(const Rows& table, const Ids& ids, int64_t padding, const GradRows& grads, void* results, int64_t begin,
              int64_t end);

}  // namespace shardwise::kernels
