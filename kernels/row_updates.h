// kernels/row_updates.h: optimizers that apply a gradient row by row and never store it.
//
// The gradient of a row is the sum of its ids' gradients, in float32 (double for doubles), and updates the row at once. Rows without ids
// do not change, nor does their state: Adam's moments do not decay there, as in torch.optim.SparseAdam, and neither do their weights.
#pragma once

#include "kernels/rows.h"
#include "kernels/stochastic_rounding.h"

#include <cmath>

namespace shardwise::kernels {

/// With g = gradient + l2 * row, an update is row = (1 - lr * decay) * row - lr * step, where step is
///
///   sgd                g
///   adagrad            g / (sqrt(sum) + eps), sum += g * g                       (Duchi, Hazan, Singer, 2011)
///   row-wise adagrad   the same with sum += mean(g * g), one sum a row           (as TorchRec and FBGEMM have it)
///   adam               correction * m / (sqrt(v) + eps), m and v as in Adam      (Kingma, Ba, 2014)
///   row-wise adam      the same with v of mean(g * g), one a row                 (FBGEMM's partial row-wise Adam)
///
/// LAMB (You et al., Large Batch Optimization for Deep Learning, 2020) takes each row for a layer of its own, as FBGEMM does:
/// with u = adam's step + decay * row it is row - lr * |row| / |u| * u, the ratio being 1 where a norm is 0. Row-wise LAMB likewise.
struct RowUpdate {
  enum class Kind : uint8_t { kSgd, kAdagrad, kRowWiseAdagrad, kAdam, kRowWiseAdam, kLamb, kRowWiseLamb };
  Kind kind;
  double lr;
  double eps;
  double beta1;
  double beta2;
  double correction = 1;  // of Adam and LAMB: of both biases, sqrt(1 - beta2^t) / (1 - beta1^t)
  double l2 = 0;          // weight decay as torch.optim.Adam has it
  double decay = 0;       // weight decay as torch.optim.AdamW has it
  StochasticRounding rounding = {};
};
using UpdateKind = RowUpdate::Kind;

/// True where one number per row follows the mean square of the row's gradient.
SHARDWISE_ANYWHERE constexpr bool is_row_wise(UpdateKind kind) {
  return kind == UpdateKind::kRowWiseAdagrad || kind == UpdateKind::kRowWiseAdam || kind == UpdateKind::kRowWiseLamb;
}
/// True where a step depends on norms of the whole row.
SHARDWISE_ANYWHERE constexpr bool is_lamb(UpdateKind kind) {
  return kind == UpdateKind::kLamb || kind == UpdateKind::kRowWiseLamb;
}
/// True where there are moments: of Adam and LAMB.
SHARDWISE_ANYWHERE constexpr bool has_moments(UpdateKind kind) { return kind >= UpdateKind::kAdam; }

/// The state of a piece's rows, float (double for double tables): [n_rows, width] contiguous, [n_rows] where there is one number per row.
struct RowState {
  void* first;                   // Adagrad's sums, or the first moment; null for SGD
  void* second;                  // the second moment
  bool rows_are_groups = false;  // the number per row is that of the groups: element g belongs to group g
};

/// What an update needs to know of whole rows, per group, where a piece has only some of their columns; null where it has whole rows.
struct RowTotals {
  const double* mean_squares = nullptr;  // of g; of row-wise kinds
  const double* ratios = nullptr;        // trust_ratio(); of LAMB
};

/// A piece of a table and what an update of it needs. Its rows are those of `rows` from `table.first_row` on, see update_rows().
struct UpdatedPiece {
  Rows table;
  RowState state;
  RowUpdate update;
};

/// |row| / |u| from the squares of both; 1 where one is 0.
SHARDWISE_ANYWHERE inline double trust_ratio(double row_squares, double step_squares) {
  return row_squares > 0 && step_squares > 0 ? std::sqrt(row_squares / step_squares) : 1.0;
}

/// results[g] = the sum of squares of g, of group g over these columns, for g in [begin, end). Of `piece` l2 and the rows are read, if l2 is
/// not 0.
void grad_squares(const UpdatedPiece& piece, const GradRows& grads, const int64_t* order, const int64_t* starts,
                  const int64_t* rows, double* results, int64_t begin, int64_t end);

/// results[2 g], results[2 g + 1] = the sums of squares of the row and of LAMB's u over these columns. Changes nothing.
void lamb_squares(const UpdatedPiece& piece, const GradRows& grads, const int64_t* order, const int64_t* starts,
                  const int64_t* rows, const RowTotals& totals, double* results, int64_t begin, int64_t end);

/// Updates row `rows[g]` and its state, for each group g in [begin, end) as group_ids() made them. The rows are divided among `n_pieces`
/// pieces, which ascend by `first_row`, do not overlap, and have the gradients' width and element; rows of none are left out.
void update_rows(const UpdatedPiece* pieces, int64_t n_pieces, const GradRows& grads, const int64_t* order,
                 const int64_t* starts, const int64_t* rows, const RowTotals& totals, int64_t begin, int64_t end);

}  // namespace shardwise::kernels
