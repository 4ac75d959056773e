// ops/support/own_operator.h: operators of our own, for local computations that no torch operator does.
//
//   define_operator("pdist(Tensor self, float p) -> Tensor", {.compute = &pdist, .shape = &shape_of_pdist});
//   table.add("shardwise::pdist", Rule("pdist", describe_pdist));
#pragma once

#include <torch/library.h>

#include <functional>

namespace shardwise {

/// A function as a kernel, of which torch takes one per dispatch key.
class OwnKernel {
 public:
  OwnKernel() = default;
  template <class Function>
  OwnKernel(Function* function)  // NOLINT: a kernel is written as its function
      : make_([=] { return torch::CppFunction(function); }) {}

  explicit operator bool() const { return static_cast<bool>(make_); }
  torch::CppFunction operator()() const { return make_(); }

 private:
  std::function<torch::CppFunction()> make_;
};

struct OwnKernels {
  OwnKernel compute;
  OwnKernel shape;       // for meta tensors; without it `compute` handles them too
  OwnKernel derivative;  // above autograd, for distributed tensors
  /// The same as a composition of torch's operators. It replaces the operator in compiled graphs and for local tensors of a tensor subclass.
  OwnKernel traced;
};

/// Defines shardwise::`schema` for plain tensors on every device; distributed tensors use the operator's rule. Called while the library loads, before
/// the rule is added.
void define_operator(const char* schema, const OwnKernels& kernels);

}  // namespace shardwise
