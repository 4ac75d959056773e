// ops/embedding/row_optimizer.h: optimizers that lookups' backwards apply row by row, so that no gradient of the table is stored.
//
//   const auto optimizer = std::make_shared<RowOptimizer>(table, RowOptimizer::Options{.kind = Kind::kRowWiseAdagrad, .lr = 0.1});
//   fuse_optimizer(table, optimizer);
//   at::embedding(table, ids).sum().backward();   // the rows of ids have changed; table.grad() is undefined
//
// Each lookup in a table is one step of its optimizer, for as long as somebody holds that. (TorchRec and FBGEMM call this a fused optimizer.)
#pragma once

#include "kernels/row_updates.h"
#include "ops/embedding/row_kernels.h"
#include "runtime/api/dtensor.h"

#include <functional>
#include <memory>

namespace shardwise {

class RowOptimizer {
 public:
  using Kind = kernels::RowUpdate::Kind;
  struct Options {
    Kind kind = Kind::kSgd;
    double lr = 0.01;
    double eps = 1e-10;  // of Adam 1e-8 is usual
    double beta1 = 0.9;  // of Adam
    double beta2 = 0.999;
    double initial_accumulator = 0;  // of Adagrad
  };

  /// State of the table's layout, on its ranks: of Adagrad [rows, columns], row-wise [rows], of Adam twice [rows, columns]; float32
  /// (float64 of double tables). Throws: c10::ValueError for a table that is not a 2-D floating DTensor or is Partial, and for options out
  /// of range.
  RowOptimizer(const at::Tensor& table, const Options& options);

  /// The numbers of the steps from now on; the kind and the first sums stay. Throws: as the constructor.
  void set_options(const Options& options);
  const Options& options() const { return options_; }
  /// Called before each step: a schedule may set_options() there.
  void set_before_step(std::function<void()> hook) { before_step_ = std::move(hook); }
  /// The layout and dtype of the table that the state was made for.
  const SpecPtr& table() const { return table_; }
  int64_t n_steps() const { return n_steps_; }
  void set_n_steps(int64_t n) { n_steps_ = n; }
  /// The state tensors, distributed: none, one or two.
  const std::vector<at::Tensor>& state() const { return state_; }

  /// Begins a step: what its update_rows() calls share.
  void begin_step();
  /// Adds the groups' gradients to the rows of piece `box`. `mean_squares`: see kernels/row_updates.h.
  void update_rows(const at::Tensor& piece, size_t box, const RowGrads& grads, const IdGroups& groups,
                   const at::Tensor& mean_squares) const;

 private:
  kernels::RowUpdate update() const;

  SpecPtr table_;
  Options options_;
  std::function<void()> before_step_;
  int64_t n_steps_ = 0;
  std::vector<at::Tensor> state_;
};

/// While `optimizer` lives, the backward of lookups in `table` steps it and leaves the table's gradient undefined.
/// Throws: c10::ValueError where the table has another one, or is not the one that the state was made for.
void fuse_optimizer(const at::Tensor& table, const std::shared_ptr<RowOptimizer>& optimizer);
/// Lookups in `table` give gradients again, if it was `optimizer` that took them.
void release_optimizer(const at::Tensor& table, const RowOptimizer& optimizer);
/// Null where there is none. Throws: c10::ValueError where the table was laid out anew or cast since. Cost: a lock and a hash.
std::shared_ptr<RowOptimizer> fused_optimizer(const at::Tensor& table);

/// Of row-wise Adagrad: the sums of squares of the groups' gradients in these columns, float64 [groups].
at::Tensor grad_squares(const RowGrads& grads, const IdGroups& groups);

}  // namespace shardwise
