// ops/support/own_operator.h: operators of our own, for local computations that no torch operator does.
//
//   define_operator("pdist(Tensor self, float p) -> Tensor", &pdist, &shape_of_pdist);
//   table.add("shardwise::pdist", Rule("pdist", describe_pdist));
#pragma once

#include <torch/library.h>

#include <functional>

namespace shardwise {

/// The kernels of an operator, each made once per device. `shape`: for meta tensors; without it `compute` handles meta tensors too.
struct OwnKernels {
  std::function<torch::CppFunction()> compute;
  std::function<torch::CppFunction()> shape;
  std::function<torch::CppFunction()> derivative;  // above autograd, for distributed tensors
  /// The same as a composition of torch's operators. It replaces the operator in compiled graphs and for local tensors of a tensor subclass.
  std::function<torch::CppFunction()> traced;
};

/// Defines shardwise::`schema` for plain tensors on every device; distributed tensors use the operator's rule. Called while the library loads, before
/// the rule is added.
void define_operator(const char* schema, const OwnKernels& kernels);

template <class Compute>
void define_operator(const char* schema, Compute* compute) {
  define_operator(schema, OwnKernels{.compute = [=] { return torch::CppFunction(compute); }});
}
template <class Compute, class Shape>
void define_operator(const char* schema, Compute* compute, Shape* shape) {
  define_operator(schema, OwnKernels{.compute = [=] { return torch::CppFunction(compute); },
                                     .shape = [=] { return torch::CppFunction(shape); }});
}
/// The same with a kernel above autograd.
template <class Compute, class Derivative>
void define_differentiable_operator(const char* schema, Compute* compute, Derivative* derivative) {
  define_operator(schema, OwnKernels{.compute = [=] { return torch::CppFunction(compute); },
                                     .derivative = [=] { return torch::CppFunction(derivative); }});
}

}  // namespace shardwise
