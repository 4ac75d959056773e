// ops/support/own_operator.h: operators of our own, for pieces that no operator of torch computes.
//
//   define_operator("pdist(Tensor self, float p) -> Tensor", &pdist, &shape_of_pdist);
//   table.add("shardwise::pdist", Rule("pdist", describe_pdist));
#pragma once

#include <torch/library.h>

#include <functional>

namespace shardwise {

/// The kernels of an operator, each made once per device. `shape`: for meta tensors; without it `compute` answers them too.
struct OwnKernels {
  std::function<torch::CppFunction()> compute;
  std::function<torch::CppFunction()> shape;
  std::function<torch::CppFunction()> derivative;  // above autograd, of distributed tensors
  /// A composition of torch's operators: these stand in its place in compiled graphs, and are what local tensors of a class of their own answer.
  std::function<torch::CppFunction()> traced;
};

/// Defines shardwise::`schema` for the plain tensors of every device; distributed ones go by its rule. Called while the library
/// loads, before the rule is stated.
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
/// ... with a kernel above autograd.
template <class Compute, class Derivative>
void define_differentiable_operator(const char* schema, Compute* compute, Derivative* derivative) {
  define_operator(schema, OwnKernels{.compute = [=] { return torch::CppFunction(compute); },
                                     .derivative = [=] { return torch::CppFunction(derivative); }});
}

}  // namespace shardwise
