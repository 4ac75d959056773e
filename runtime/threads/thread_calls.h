// runtime/threads/thread_calls.h: what each collective does among ranks that are threads of one process, however they are brought together.
#pragma once

#include "runtime/threads/rendezvous.h"

#include <torch/csrc/distributed/c10d/Types.hpp>

#include <functional>
#include <string>
#include <vector>

namespace shardwise {

/// One rank's part in a collective.
struct ThreadCall {
  Offer offer;                      // its tensors are the inputs
  std::vector<at::Tensor> outputs;  // what `read` and `write` change
  /// Reads all offers. Writes to outputs that are not inputs too.
  std::function<void(const Offers&)> read;
  /// Runs when nobody reads the inputs any more.
  std::function<void()> write = [] {};
};

/// Throws: c10::NotImplementedError for a pre-multiplied sum, c10::ValueError for another number of tensors than one.
ThreadCall all_reduce_call(const std::vector<at::Tensor>& tensors, c10d::ReduceOp::RedOpType op);
ThreadCall broadcast_call(const std::vector<at::Tensor>& tensors, int64_t root, int64_t index);
/// Throws: c10::ValueError where `output` is not `n_members` times `input`.
ThreadCall all_gather_call(const at::Tensor& output, const at::Tensor& input, int64_t n_members);
/// No splits mean even ones. Throws: c10::ValueError for splits that do not add up; from `read` where two members' differ.
ThreadCall all_to_all_call(const at::Tensor& output, const at::Tensor& input,
                           const std::vector<int64_t>& receive_splits, const std::vector<int64_t>& send_splits,
                           int64_t index, int64_t n_members);

/// The only tensor. Throws: c10::ValueError where there is another number of them.
const at::Tensor& only(const char* op, const std::vector<at::Tensor>& tensors);

/// Throws: c10::ValueError where `other` is no other member.
void check_other_member(const char* op, int64_t other, int64_t index, int64_t n_members);

/// "6 Float".
std::string describe(const at::Tensor& tensor);

/// Copies what was `sent` into `to`. Throws: c10::ValueError with both ranks where number or dtype of the elements differ.
void receive_into(const at::Tensor& to, const at::Tensor& sent, int64_t from_rank, int64_t own_rank);

}  // namespace shardwise
