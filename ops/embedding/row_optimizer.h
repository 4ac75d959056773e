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
    double weight_decay = 0;
    /// Weights decay beside the gradient, as in torch.optim.AdamW, and not within it. LAMB's always do, within its trust ratio.
    bool is_decoupled = false;
    /// Tables of 16 bits are rounded up or down at random, see kernels/stochastic_rounding.h, and not to the nearest: by `seed`, the number
    /// of the step, and the element's row and column, so alike for every layout, number of ranks and number of threads.
    bool rounds_at_random = false;
    uint64_t seed = 0;
  };

  /// Allocates the state, laid out as the table: Adagrad's sums, Adam's and LAMB's two moments. Of row-wise kinds the sums, or the second
  /// moments, are [rows]: replicated where columns are sharded; of rows that lie in several pieces, with the first of these.
  /// float32 (float64 for double tables). The state of a table in a file (runtime/tensor/mapped_memory.h) lies in files of the same folder.
  /// Throws: c10::ValueError for a table that is not a 2-D floating DTensor or is Partial, for options out of range, and on a rank whose
  /// disk has no room; c10::NotImplementedError for a table in pieces on a mesh of several dims.
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

  /// `write_back` brings the state tensors up to date with a cache that holds newer rows of them.
  void add_write_back(std::function<void()> write_back) { write_back_.push_back(std::move(write_back)); }
  /// To be called before state() is read.
  void write_back() const;

  /// Begins a step. Its update_rows() calls follow, one per piece.
  void begin_step();
  /// Piece number `box` with its state and the numbers of this step, for the functions of ops/embedding/row_kernels.h. Callers may set
  /// `first_row`, and update the pieces of several tables in one call.
  UpdatedRows updated_rows(const at::Tensor& piece, size_t box) const;
  /// Updates the rows of piece number `box` with the groups' gradients. `mean_squares`: of row-wise kinds, where the piece has not all of
  /// the columns; see ops/embedding/row_kernels.h.
  void update_rows(const at::Tensor& piece, size_t box, const RowGrads& grads, const IdGroups& groups,
                   const at::Tensor& mean_squares) const;

 private:
  kernels::RowUpdate update(size_t box) const;

  SpecPtr table_;
  Options options_;
  std::function<void()> before_step_;
  std::vector<std::function<void()>> write_back_;
  int64_t n_steps_ = 0;
  std::vector<at::Tensor> state_;
};

/// "Adagrad", "row-wise Adagrad".
const char* to_string(RowOptimizer::Kind kind);

/// While `optimizer` lives, the backward of lookups in `table` steps it and leaves the table's gradient undefined.
/// Throws: c10::ValueError where the table has another one, or is not the one that the state was made for.
void fuse_optimizer(const at::Tensor& table, const std::shared_ptr<RowOptimizer>& optimizer);
/// Lookups in `table` give gradients again, if `optimizer` is the one that took them.
void release_optimizer(const at::Tensor& table, const RowOptimizer& optimizer);
/// Null where there is none. Throws: c10::ValueError where the table's layout or dtype has changed since. Cost: a lock and a hash.
std::shared_ptr<RowOptimizer> fused_optimizer(const at::Tensor& table);

}  // namespace shardwise
