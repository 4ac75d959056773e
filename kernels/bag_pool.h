// kernels/bag_pool.h: sums, means and maxima of bags of rows, as far as their rows are this piece's.
#pragma once

#include "kernels/rows.h"

namespace shardwise::kernels {

/// Row b of `results` [bags, width] (the table's kind, contiguous) is bag b's sum, mean or maximum over the ids of this piece, for b in
/// [begin, end). A mean divides by all ids of the bag, other pieces' too, so that the pieces' results add up to it. A maximum without
/// an id here is `none`, of a bag without ids that count 0; `chosen` [bags, width], unless null, takes the id's place that it came from (the first, of several; -1
/// of none), a NaN being the largest. Cost: one pass over the rows named, float32 (double) sums, no memory.
void pool(const Rows& table, const Ids& ids, const Bags& bags, Pooling pooling, double none, void* results,
          int64_t* chosen, int64_t begin, int64_t end);

/// bag_of[k] is the bag of id k and factors[k] its part in the bag's result (1 over the ids that count, of means; times its weight): what
/// GradRows wants. `factors`: float, of double tables double; may be null. For bags [begin, end).
void spread_bags(const Bags& bags, const Ids& ids, Pooling pooling, Element element, int64_t* bag_of, void* factors,
                 int64_t begin, int64_t end);

/// The gradient of the factor of id k: row of id k times the gradient of its bag, 0 where the row is elsewhere or the id is
/// `padding`; of the table's kind. For k in [begin, end).
void dot_rows(const Rows& table, const Ids& ids, int64_t padding, const GradRows& grads, void* results, int64_t begin,
              int64_t end);

}  // namespace shardwise::kernels
