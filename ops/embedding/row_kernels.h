// ops/embedding/row_kernels.h: the kernels of kernels/ on plain tensors of one rank; no messages.
//
// Shapes: rows [n, width], a piece of a table whose row 0 is row `first_row`; ids [...] of int32 or int64. Ids of other pieces' rows are
// skipped.
#pragma once

#include "ops/embedding/row_launch.h"

#include <ATen/core/Tensor.h>

#include <optional>
#include <utility>

namespace shardwise {

/// For each id its row, zeros where it is elsewhere: [..., width], contiguous. Any dtype. Cost: one pass over the result.
at::Tensor lookup_rows(const at::Tensor& rows, const at::Tensor& ids, int64_t first_row);
/// The same into `results` [ids, width], the elements of whose rows adjoin; rows that are elsewhere are left as they are.
void lookup_rows_into(const at::Tensor& results, const at::Tensor& rows, const at::Tensor& ids, int64_t first_row);

/// The lowest and the highest id; nothing without ids.
std::optional<std::pair<int64_t, int64_t>> range_of_ids(const at::Tensor& ids);

/// A number that differs where ids or their order do. Cost: a pass over them.
int64_t digest_of_ids(const at::Tensor& ids);

/// Ids sorted by the row they name, all int64: group g is row `first_row + rows[g]`; its ids are `order[starts[g] .. starts[g + 1])`.
struct IdGroups {
  at::Tensor rows;      // [groups], ascending
  at::Tensor starts;    // [groups + 1]
  at::Tensor order;     // [ids here]
  at::Tensor group_of;  // [ids], -1 where an id is elsewhere; undefined unless asked for

  int64_t n() const { return rows.numel(); }
};

/// Groups the ids in [first_row, first_row + n_rows) but for `skipped`. Cost: a pass over the ids per 11 bits of n_rows.
IdGroups group_ids(const at::Tensor& ids, int64_t first_row, int64_t n_rows, int64_t skipped = -1,
                   bool with_group_of = false);

/// One gradient row per id or, of bags, per bag.
struct RowGrads {
  at::Tensor values;   // [ids or bags, width]
  at::Tensor row_of;   // [ids] int64: the row of `values` of each id; undefined: its own
  at::Tensor factors;  // [ids] float32, of float64 values float64; undefined: 1
  at::Tensor chosen;   // [bags, width] int64, of maxima: the id that a value came from; undefined: all

  /// The same in the columns [begin, begin + width).
  RowGrads columns(int64_t begin, int64_t width) const;
  /// Takes `by` [ids] into the factors.
  void scale(const at::Tensor& by);
};

/// The sum of each group's gradients, [groups, width]. Summed in the order of ids, in float32 at least, and rounded once.
at::Tensor sum_groups(const RowGrads& grads, const IdGroups& groups);
/// The same as rows of a dense gradient, zeros [n_rows, width] elsewhere. Nothing larger than it is allocated.
at::Tensor sum_rows(const RowGrads& grads, const IdGroups& groups, int64_t n_rows);

/// Bags of ids: bag b holds the ids [offsets[b], offsets[b + 1]), the last one the rest.
struct IdBags {
  at::Tensor ids;           // [n]
  at::Tensor offsets;       // [bags] int64
  int64_t padding = -1;     // an id that does not count
  at::Tensor weights = {};  // [n] of the table's dtype; undefined: 1
};

/// Each bag's sum, mean or maximum, [bags, width]. A mean is over all ids of the bag, so that the pieces' results add up; a maximum without
/// ids here is -infinity, of an empty bag 0. `chosen`, unless null, gets the ids' places that maxima came from, [bags, width].
at::Tensor pool_rows(const at::Tensor& rows, int64_t first_row, const IdBags& bags, kernels::Pooling pooling,
                     at::Tensor* chosen = nullptr);

/// The gradient rows of a pooled lookup from that of its result, [bags, width]. `chosen`: of maxima.
RowGrads grads_of_bags(const at::Tensor& grad, const IdBags& bags, kernels::Pooling pooling, const at::Tensor& chosen);

/// The gradient of the bags' weights, [n]: rows times `grad` [bags, width]; 0 where a row is elsewhere.
at::Tensor weights_grad(const at::Tensor& rows, int64_t first_row, const IdBags& bags, const RowGrads& grads);

/// Of the piece's rows `numbers` [groups] the sums of |x|^p over their columns, float64; the largest |x| of infinite p.
at::Tensor row_powers(const at::Tensor& rows, const at::Tensor& numbers, double p);
/// Shortens those whose norm is above `max_norm` to it; `powers` over the whole rows.
void shorten_rows(const at::Tensor& rows, const at::Tensor& numbers, double p, double max_norm,
                  const at::Tensor& powers);

/// The view of a tensor that the kernels take. Pre: it is of a floating dtype and its rows' elements adjoin.
kernels::Rows rows_of(const at::Tensor& rows, int64_t first_row);
kernels::GradRows grad_rows_of(const RowGrads& grads);
launch::Groups groups_of(const IdGroups& groups);

}  // namespace shardwise
