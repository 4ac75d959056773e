// ops/embedding/row_optimizer.h: optimizers that the backward of lookups applies row by row, so that no gradient of the table is stored.
//
//   const auto optimizer = std::make_shared<RowOptimizer>(table, RowOptimizer::Options{.kind = Kind::kRowWiseAdagrad, .lr = 0.1});
//   fuse_optimizer(table, optimizer);
//   at::embedding(table, ids).sum().backward();   // the rows of ids have changed; table.grad() is undefined
//
// Each lookup in a table is one step of its optimizer, as long as the optimizer is alive. (TorchRec and FBGEMM call this a fused
// optimizer.)
#pragma once

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

  /// Allocates the state, laid out as the table: [rows, columns] for Adagrad, [rows] for row-wise Adagrad, two of [rows, columns] for
  /// Adam; float32 (float64 for double tables). Throws: c10::ValueError for a table that is not a 2-D floating DTensor or is Partial, and
  /// for options out of range.
  RowOptimizer(const at::Tensor& table, const Options& options);

  /// The options of the steps from now on; `kind` and `initial_accumulator` stay. Throws: as the constructor.
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

  /// Begins a step. Its update_rows() calls follow, one per piece.
  void begin_step();
  /// Updates the rows of piece number `box` with the groups' gradients. `mean_squares`: see ops/embedding/row_kernels.h.
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
/// Lookups in `table` give gradients again, if `optimizer` is the one that took them.
void release_optimizer(const at::Tensor& table, const RowOptimizer& optimizer);
/// Null where there is none. Throws: c10::ValueError where the table's layout or dtype has changed since. Cost: a lock and a hash.
std::shared_ptr<RowOptimizer> fused_optimizer(const at::Tensor& table);

}  // namespace shardwise
