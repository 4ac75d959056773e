// ops/embedding/row_kernels.h: the kernels of kernels/ as functions of one rank's plain tensors; no messages.
//
// Shapes: rows [n, width], a piece of a table; row 0 of the piece is row `first_row` of the table. ids [...] of int32 or int64. Ids of rows in other
// pieces are skipped.
#pragma once

#include "kernels/row_updates.h"

#include <ATen/core/Tensor.h>
#include <c10/util/SmallVector.h>

#include <optional>

namespace shardwise {

/// The row of each id, or zeros if another piece has the row: [..., width], contiguous. Any dtype. Cost: one pass over the result.
at::Tensor lookup_rows(const at::Tensor& rows, const at::Tensor& ids, int64_t first_row);
/// The same into `results` [ids, width], whose last dim has stride 1. Result rows whose id is in another piece keep their values.
void lookup_rows_into(const at::Tensor& results, const at::Tensor& rows, const at::Tensor& ids, int64_t first_row);

/// A device-side assertion for ids on a GPU: it fails for ids outside [0, n_rows). The host does not wait.
void assert_ids(const at::Tensor& ids, int64_t n_rows);

/// A hash of the ids in their order. Cost: one pass over them.
int64_t digest_of_ids(const at::Tensor& ids);

/// Ids sorted by the row they name, all int64: group g is row `first_row + rows[g]`; its ids are `order[starts[g] .. starts[g + 1])`.
struct IdGroups {
  at::Tensor rows;      // [groups], ascending
  at::Tensor starts;    // [groups + 1]
  at::Tensor order;     // [ids here]
  at::Tensor group_of;  // [ids], -1 for ids of other pieces; undefined unless requested

  int64_t n() const { return rows.numel(); }
  template <class Visit>
  void for_each_tensor(const Visit& visit) {
    for (at::Tensor* tensor : {&rows, &starts, &order, &group_of}) visit(*tensor);
  }
};

/// The table that ids on meta are of. Without one, it is the piece.
struct TableOfIds {
  int64_t n_rows;
  bool are_in_piece = false;  // the ids name no rows of other pieces
};

/// Groups the ids in [first_row, first_row + n_rows), without `skipped`. Cost: a pass over the ids per 11 bits of n_rows.
/// On meta, the number of groups is that of PlannedIds, for ids of `table`.
IdGroups group_ids(const at::Tensor& ids, int64_t first_row, int64_t n_rows, int64_t skipped = -1,
                   bool with_group_of = false, std::optional<TableOfIds> table = {});

/// Gradient rows: one per id or, for pooled lookups, one per bag.
struct RowGrads {
  at::Tensor values;   // [ids or bags, width]
  at::Tensor row_of;   // [ids] int64: the row of `values` that belongs to each id; undefined: row k to id k
  at::Tensor factors;  // [ids] float32 (float64 if `values` are); undefined: 1
  at::Tensor chosen;   // [bags, width] int64, for maxima: index of the id that each value came from; undefined: all ids

  /// The same in the columns [begin, begin + width).
  RowGrads columns(int64_t begin, int64_t width) const;
  /// Multiplies each id's factor by `by` [ids].
  void scale(const at::Tensor& by);
};

/// The sum of each group's gradients, [groups, width]. Summed in the order of ids, in float32 or float64, and rounded once.
at::Tensor sum_groups(const RowGrads& grads, const IdGroups& groups);
/// The same into `sums`, contiguous.
void sum_groups_into(const at::Tensor& sums, const RowGrads& grads, const IdGroups& groups);
/// The same as a dense gradient [n_rows, width], zeros in rows without ids. Nothing larger than the result is allocated.
at::Tensor sum_rows(const RowGrads& grads, const IdGroups& groups, int64_t n_rows);

/// The sum of squares of each group's summed gradient plus `l2` * row, over these columns, float64 [groups, 1].
at::Tensor grad_squares(const RowGrads& grads, const IdGroups& groups, const at::Tensor& rows, double l2);

/// A piece of a table and what an optimizer changes there, see kernels/row_updates.h.
struct UpdatedRows {
  at::Tensor rows;                        // [n, width]; row 0 has the number `first_row` in groups
  c10::SmallVector<at::Tensor, 2> state;  // as kernels::RowState: none, one or two
  kernels::RowUpdate update;
  int64_t first_row = 0;
  bool rows_are_groups = false;  // the state's number per row is [groups]
};

/// Sums over whole rows, float64 [groups]. Undefined if the pieces have whole rows, or if the update needs no such sums.
struct RowSums {
  at::Tensor mean_squares;  // of gradients, for row-wise optimizers
  at::Tensor ratios;        // LAMB's trust ratios
};

/// The sums of squares of each row and of LAMB's step for it, over these columns, float64 [groups, 2]. Changes nothing.
at::Tensor lamb_squares(const UpdatedRows& piece, const RowGrads& grads, const IdGroups& groups,
                        const at::Tensor& mean_squares = {});

/// One step of optimizers on the rows that groups name. One call updates several pieces, of one table or of several tables with equal dtype and
/// width, each with its own optimizer settings. Pieces ascend by `first_row` and do not overlap; rows in no piece are left out.
///
///   pieces of tables of 10 and 5 rows, first_row 0 and 10, group_ids(ids, 0, 15): id 12 is row 2 of the second table
void update_rows(c10::ArrayRef<UpdatedRows> pieces, const RowGrads& grads, const IdGroups& groups,
                 const RowSums& sums = {});

/// Bags of ids: bag b holds the ids [offsets[b], offsets[b + 1]), the last bag the remaining ids.
struct IdBags {
  at::Tensor ids;           // [n]
  at::Tensor offsets;       // [bags] int64
  int64_t padding = -1;     // an id that does not count
  at::Tensor weights = {};  // [n] of the table's dtype; undefined: 1

  /// The number of ids of each bag, [bags] int64.
  at::Tensor lengths() const;
  template <class Visit>
  void for_each_tensor(const Visit& visit) {
    for (at::Tensor* tensor : {&ids, &offsets, &weights}) visit(*tensor);
  }
};

/// Each bag's sum, mean or maximum, [bags, width]. A mean divides by all ids of the bag, so that the pieces' results add up. A maximum is -infinity
/// if other pieces have all rows of the bag, and 0 for an empty bag. `chosen`, unless null, gets the index of the id that each maximum came from,
/// [bags, width].
at::Tensor pool_rows(const at::Tensor& rows, int64_t first_row, const IdBags& bags, kernels::Pooling pooling,
                     at::Tensor* chosen = nullptr);

/// The gradient rows of a pooled lookup, from the gradient of its result [bags, width]. `chosen`: for maxima, as pool_rows() returned it.
RowGrads grads_of_bags(const at::Tensor& grad, const IdBags& bags, kernels::Pooling pooling, const at::Tensor& chosen);

/// The gradient of the bags' weights, [n]: rows times `grad` [bags, width]; 0 for rows of other pieces.
at::Tensor weights_grad(const at::Tensor& rows, int64_t first_row, const IdBags& bags, const RowGrads& grads);

/// The sum of |x|^p over the columns of each row in `numbers` [groups], float64; the largest |x| if p is infinite.
at::Tensor row_powers(const at::Tensor& rows, const at::Tensor& numbers, double p);
/// Scales rows whose norm exceeds `max_norm` down to it. `powers`: row_powers() of whole rows, summed over all column pieces.
void shorten_rows(const at::Tensor& rows, const at::Tensor& numbers, double p, double max_norm,
                  const at::Tensor& powers);

}  // namespace shardwise
