// ops/embedding/row_optimizer.h: optimizers that the backward of lookups applies row by row, so that no gradient of the table is stored.
//
//   const auto optimizer = std::make_shared<RowOptimizer>(table, RowOptimizer::Options{.method = Method::kRowWiseAdagrad, .lr = 0.1});
//   fuse_optimizer(table, optimizer);
//   at::embedding(table, ids).sum().backward();   // the rows of ids have changed; table.grad() is undefined
//
// Each lookup in a table is one step of its optimizer, while the optimizer lives. (TorchRec and FBGEMM call this a fused optimizer.)
#pragma once

#include "ops/embedding/row_kernels.h"
#include "runtime/api/dtensor.h"

#include <functional>
#include <memory>

namespace shardwise {

class RowOptimizer {
 public:
  using Method = kernels::RowUpdate::Method;
  struct Options {
    Method method = Method::kSgd;
    double lr = 0.01;
    double eps = 1e-10;  // 1e-8 is usual for Adam
    double beta1 = 0.9;  // for Adam
    double beta2 = 0.999;
    double initial_accumulator = 0;  // for Adagrad
    double weight_decay = 0;
    /// Applies weight decay to the weights, as torch.optim.AdamW does, and not to the gradient. LAMB always does so, within its trust ratio.
    bool is_decoupled = false;
    /// Rounds tables of 16 bits up or down at random (kernels/stochastic_rounding.h), not to the nearest number. The choice depends on `seed`, the
    /// step number, and the element's row and column only, so it is equal for every layout, number of ranks and number of threads.
    bool rounds_at_random = false;
    uint64_t seed = 0;
  };

  /// Allocates the state, laid out as the table: Adagrad's sums, Adam's and LAMB's two moments. For row-wise kinds the sums, or the second moments,
  /// are [rows]. They are replicated over ranks that shard columns; if a row lies in several pieces, the first piece keeps its number. float32
  /// (float64 for double tables). The state of a table in a file (runtime/tensor/mapped_memory.h) lies in files of the same folder.
  /// Throws: c10::ValueError for a table that is not a 2-D floating DTensor or is Partial, for options out of range, and on a rank whose disk is
  /// full; c10::NotImplementedError for a table in pieces on a mesh of several dims.
  RowOptimizer(const at::Tensor& table, const Options& options);

  /// Sets the options of the following steps; `method` and `initial_accumulator` do not change. Throws: as the constructor.
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
  /// Runs all callbacks of add_write_back(). Call it before reading state().
  void write_back() const;

  /// Begins a step. Calls of update_rows() follow, one per piece.
  void begin_step();
  /// Piece number `box` with its state and this step's scalars, for the functions of ops/embedding/row_kernels.h. Callers may set `first_row`, and
  /// update the pieces of several tables in one call.
  UpdatedRows updated_rows(const at::Tensor& piece, size_t box) const;

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
const char* to_string(RowOptimizer::Method method);

/// While `optimizer` lives, the backward of lookups in `table` steps it and leaves the table's gradient undefined.
/// Throws: c10::ValueError if the table has another fused optimizer, or is not the table that the state was made for.
void fuse_optimizer(const at::Tensor& table, const std::shared_ptr<RowOptimizer>& optimizer);
/// Ends fuse_optimizer(): lookups in `table` give gradients again. Does nothing if another optimizer is fused.
void release_optimizer(const at::Tensor& table, const RowOptimizer& optimizer);
/// The optimizer fused with `table`, or null. Throws: c10::ValueError if the table's layout or dtype has changed since. Cost: a lock and a hash.
std::shared_ptr<RowOptimizer> fused_optimizer(const at::Tensor& table);
/// From now on, fused_optimizer() is the same for a table and for the tensor that stands for it in a traced program.
void carry_optimizers();
/// Throws: as check_not_traced() for a table with a fused optimizer, whose updates in the backward have no place in a graph.
void check_no_optimizer_traced(const at::Tensor& table);

}  // namespace shardwise
