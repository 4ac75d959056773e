// kernels/row_updates.h: optimizers that apply a gradient row by row and never store it.
//
// The gradient of a row is the sum of its ids' gradients, in float32 (double for doubles), and updates the row at once. Rows without ids
// do not change, nor does their state: Adam's moments do not decay there, as in torch.optim.SparseAdam.
#pragma once

#include "kernels/rows.h"

namespace shardwise::kernels {

/// sgd:              row -= lr * g
/// adagrad:          sum += g * g;          row -= lr * g / (sqrt(sum) + eps)     (Duchi, Hazan, Singer, 2011)
/// row-wise adagrad: sum += mean(g * g);    the same, one sum a row               (as TorchRec and FBGEMM have it)
/// adam:             m, v as in Adam (Kingma, Ba, 2014); row -= lr * sqrt(1 - beta2^t) / (1 - beta1^t) * m / (sqrt(v) + eps)
struct RowUpdate {
  enum class Kind : uint8_t { kSgd, kAdagrad, kRowWiseAdagrad, kAdam };
  Kind kind;
  double lr;  // of Adam: with both bias corrections
  double eps;
  double beta1;
  double beta2;
};

/// The state of a piece's rows, float (double for double tables): [n_rows, width] contiguous, for row-wise Adagrad [n_rows].
struct RowState {
  void* first;   // sums of squares, or Adam's first moment; null for SGD
  void* second;  // Adam's second moment
};

/// results[g] = the sum of squares of the gradient of group g over these columns, for g in [begin, end).
void grad_squares(const GradRows& grads, const int64_t* order, const int64_t* starts, double* results, int64_t begin,
                  int64_t end);

/// Updates row `rows[g]` of the piece and of its state, for each group g in [begin, end) as group_ids() made them.
/// `mean_squares`: of row-wise Adagrad, per group, over the whole row; null where the piece has whole rows.
void update_rows(const Rows& table, const RowState& state, const RowUpdate& update, const GradRows& grads,
                 const int64_t* order, const int64_t* starts, const int64_t* rows, const double* mean_squares,
                 int64_t begin, int64_t end);

}  // namespace shardwise::kernels
