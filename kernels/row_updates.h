// kernels/row_updates.h: optimizer steps that are applied row by row, without storing the gradient.
//
// The gradient of a row is the sum of its ids' gradients, in float32 (double for doubles), and updates the row at once. Rows without ids do
// not change and neither does their state: as in torch.optim.SparseAdam, Adam's moments do not decay there, and weights do not decay.
#pragma once

#include "kernels/id_groups.h"
#include "kernels/stochastic_rounding.h"

#include <cmath>

namespace shardwise::kernels {

/// With g = gradient + l2 * row, an update is row = (1 - lr * decay) * row - lr * step, where step is
///
///   sgd                g
///   adagrad            g / (sqrt(sum) + eps), sum += g * g                       (Duchi, Hazan, Singer, 2011)
///   row-wise adagrad   the same with sum += mean(g * g), one sum per row         (as in TorchRec and FBGEMM)
///   adam               correction * m / (sqrt(v) + eps), m and v as in Adam      (Kingma, Ba, 2014)
///   row-wise adam      the same with v of mean(g * g), one per row               (FBGEMM's partial row-wise Adam)
///
/// LAMB (You et al., Large Batch Optimization for Deep Learning, 2020) treats each row as a layer, as FBGEMM does: with u = adam's step +
/// decay * row, the new row is row - lr * |row| / |u| * u, where the ratio is 1 if a norm is 0. Row-wise LAMB likewise.
struct RowUpdate {
  enum class Method : uint8_t { kSgd, kAdagrad, kRowWiseAdagrad, kAdam, kRowWiseAdam, kLamb, kRowWiseLamb };
  Method method;
  double lr;
  double eps;
  double beta1;
  double beta2;
  double correction = 1;  // for Adam and LAMB: of both biases, sqrt(1 - beta2^t) / (1 - beta1^t)
  double l2 = 0;          // weight decay as in torch.optim.Adam
  double decay = 0;       // weight decay as in torch.optim.AdamW
  StochasticRounding rounding = {};
};
using UpdateMethod = RowUpdate::Method;

/// True for kinds that keep one number per row, for the mean square of the row's gradient.
SHARDWISE_ANYWHERE constexpr bool is_row_wise(UpdateMethod method) {
  return method == UpdateMethod::kRowWiseAdagrad || method == UpdateMethod::kRowWiseAdam ||
         method == UpdateMethod::kRowWiseLamb;
}
/// True for kinds whose step depends on norms of the whole row.
SHARDWISE_ANYWHERE constexpr bool is_lamb(UpdateMethod method) {
  return method == UpdateMethod::kLamb || method == UpdateMethod::kRowWiseLamb;
}
/// True for kinds with moments: Adam and LAMB.
SHARDWISE_ANYWHERE constexpr bool has_moments(UpdateMethod method) { return method >= UpdateMethod::kAdam; }

/// The optimizer state of a piece's rows, float (double for double tables): [n_rows, width] contiguous, or [n_rows] for one number per row.
struct RowState {
  void* first;                   // Adagrad's sums, or the first moment; null for SGD
  void* second;                  // the second moment
  bool rows_are_groups = false;  // the numbers per row belong to groups: element g is that of group g
};

/// Totals over whole rows, per group, for a piece that has only some of their columns. Null if the piece has whole rows.
struct RowTotals {
  const double* mean_squares = nullptr;  // of g; for row-wise kinds
  const double* ratios = nullptr;        // trust_ratio(); for LAMB
};

/// A piece of a table with its state and update. It has the rows of `rows` from `table.first_row` on; see update_rows().
struct UpdatedPiece {
  Rows table;
  RowState state;
  RowUpdate update;
};

/// Pieces that ascend by `first_row`, do not overlap, and have the gradients' width and element.
struct UpdatedPieces {
  const UpdatedPiece* here;  // in host memory
  int64_t n;
  const UpdatedPiece* there = nullptr;  // the same in device memory, for kernels on GPUs; needed if there are several
};

/// |row| / |u| from the squares of both; 1 if one of them is 0.
SHARDWISE_ANYWHERE inline double trust_ratio(double row_squares, double step_squares) {
  return row_squares > 0 && step_squares > 0 ? std::sqrt(row_squares / step_squares) : 1.0;
}

/// For g in [begin, end): results[g] = the sum of squares of group g's gradient over these columns. l2 and, unless it is 0, the rows are
/// read from `piece`.
void grad_squares(const UpdatedPiece& piece, const GradRows& grads, const Groups& groups, const int64_t* rows,
                  double* results, int64_t begin, int64_t end);

/// results[2 g], results[2 g + 1] = the sums of squares of the row and of LAMB's u over these columns. Changes no row or state.
void lamb_squares(const UpdatedPiece& piece, const GradRows& grads, const Groups& groups, const int64_t* rows,
                  const RowTotals& totals, double* results, int64_t begin, int64_t end);

/// Updates row `rows[g]` and its state for each group g in [begin, end). The rows are divided among the pieces. Rows in no piece are
/// skipped.
void update_rows(const UpdatedPieces& pieces, const GradRows& grads, const Groups& groups, const int64_t* rows,
                 const RowTotals& totals, int64_t begin, int64_t end);

}  // namespace shardwise::kernels
