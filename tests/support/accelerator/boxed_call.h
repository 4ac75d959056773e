// tests/support/accelerator/boxed_call.h: one call of any operator on device tensors, as its meta and its CPU kernel take it.
#pragma once

#include "tests/support/accelerator/accelerator.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace shardwise::accelerator {

/// The same memory as a tensor of the CPU. For tasks.
at::Tensor on_host(const at::Tensor& tensor);

class BoundTensors {
 public:
  /// Pre: the arguments are the last on `stack`. Throws: c10::Error where their tensors are on several devices; of the CPU's may only be
  /// such of one element.
  BoundTensors(const c10::OperatorHandle& op, const torch::jit::Stack& stack);

  const std::string& name() const { return op_.schema().name(); }
  c10::Device device() const { return device_; }
  std::vector<Access> accesses() const;

  /// The results on meta tensors; nothing where the operator has no such kernel, or not for these arguments.
  std::optional<torch::jit::Stack> infer() const;

  /// `with_new_outs`: empty tensors in the place of those given as out=.
  torch::jit::Stack host_args(bool with_new_outs) const;

  /// Replaces `stack` by the results that `place(value, given)` makes of `values`; `given` is the argument that the result is, undefined
  /// of a new tensor.
  using Place = std::function<at::Tensor(const at::Tensor&, const at::Tensor&)>;
  void finish(const torch::jit::Stack& values, torch::jit::Stack* stack, const Place& place) const;

 private:
  using Change = std::function<at::Tensor(const at::Tensor&, const c10::Argument&)>;
  torch::jit::Stack changed(const Change& change, c10::DeviceType device) const;
  at::Tensor given_for(const c10::Argument& result) const;

  c10::OperatorHandle op_;
  torch::jit::Stack args_;
  c10::Device device_;
};

torch::jit::Stack run_on_host(const c10::OperatorHandle& op, const torch::jit::Stack& args);

/// Copies the new tensors among `results` to `places`.
void copy_fresh(const c10::OperatorHandle& op, const torch::jit::Stack& results, const std::vector<at::Tensor>& places);

}  // namespace shardwise::accelerator
