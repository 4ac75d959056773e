// threads/thread_calls.h: the computation of each collective among ranks that are threads of one process, and checks of messages.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/distributed/c10d/Types.hpp>

#include <functional>
#include <mutex>
#include <string>
#include <vector>

namespace shardwise {

/// The contribution of one rank to a collective.
struct Offer {
  std::string op;      // "all_reduce"
  std::string detail;  // "sum of 6 Float": op and detail must be the same on all ranks
  std::vector<at::Tensor> tensors;
  std::vector<int64_t> send_counts;  // elements per member; all_to_all only
  std::vector<int64_t> receive_counts;
};

/// The contributions of all members, by group order. Thread-safe.
struct Offers {
  std::vector<Offer> by_member;

  /// The value of `compute()`, which the first member to ask computes for all. If it throws, it throws for each member.
  template <class Compute>
  const at::Tensor& common(const Compute& compute) const {
    std::call_once(is_computed_, [&] { common_ = compute(); });
    return common_;
  }

 private:
  mutable std::once_flag is_computed_;
  mutable at::Tensor common_;
};

/// One rank's part of a collective.
struct ThreadCall {
  Offer offer;                      // its tensors are the inputs
  std::vector<at::Tensor> outputs;  // the tensors that `read` changes
  /// Reads all offers, whose tensors are copies of the inputs.
  std::function<void(const Offers&)> read;
};

/// Throws: c10::NotImplementedError for a pre-multiplied sum, c10::ValueError unless there is exactly one tensor.
ThreadCall all_reduce_call(const std::vector<at::Tensor>& tensors, c10d::ReduceOp::RedOpType op);
ThreadCall broadcast_call(const std::vector<at::Tensor>& tensors, int64_t root, int64_t index);
/// Throws: c10::ValueError if `output` is not `n_members` times `input`.
ThreadCall all_gather_call(const at::Tensor& output, const at::Tensor& input, int64_t n_members);
/// Empty splits mean an even split. Throws: c10::ValueError for splits that do not add up, and from `read` if the splits of two members do
/// not match.
ThreadCall all_to_all_call(const at::Tensor& output, const at::Tensor& input,
                           const std::vector<int64_t>& receive_splits, const std::vector<int64_t>& send_splits,
                           int64_t index, int64_t n_members);

/// The only tensor of a list. Throws: c10::ValueError if there is not exactly one.
const at::Tensor& only(const char* op, const std::vector<at::Tensor>& tensors);

/// Throws: c10::ValueError if `other` is not the index of another member.
void check_other_member(const char* op, int64_t other, int64_t index, int64_t n_members);

/// "6 Float".
std::string describe(const at::Tensor& tensor);

/// Copies `sent` into `to`. Throws: c10::ValueError with both ranks if the number or dtype of the elements differs.
void receive_into(const at::Tensor& to, const at::Tensor& sent, int64_t from_rank, int64_t own_rank);

}  // namespace shardwise
