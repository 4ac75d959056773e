// ops/support/by_rule.h: calls an operator by its rule, from a kernel that handles only some of the operator's calls itself.
//
//   static const ByRule softmax("aten::_softmax");
//   return softmax(self, dim, half_to_float);
#pragma once

#include "runtime/rules/op_info.h"
#include "runtime/tensor/dtensor_impl.h"

#include <ATen/OpMathType.h>
#include <ATen/core/stack.h>

#include <tuple>
#include <utility>

namespace shardwise {

/// If a rank receives at most this many bytes, latency dominates: one gather is faster than two sums of fewer bytes.
constexpr int64_t kLatencyBytes = int64_t{1} << 16;

/// Pre: made once all rules are registered; lives as long as the process.
class ByRule {
 public:
  explicit ByRule(const char* name, const char* overload = "");

  /// The first result. Throws: as dispatch().
  template <class... Args>
  at::Tensor operator()(Args&&... args) const {
    return std::get<0>(tensors<1>(std::forward<Args>(args)...));
  }
  /// The first `n` results.
  template <size_t n, class... Args>
  auto tensors(Args&&... args) const {
    torch::jit::Stack stack;
    torch::jit::push(stack, std::forward<Args>(args)...);
    run(stack);
    return [&]<size_t... i>(std::index_sequence<i...>) {
      return std::tuple(std::move(stack[i]).toTensor()...);
    }(std::make_index_sequence<n>());
  }
  /// The layouts in which the rule takes the tensors among the arguments, as planned_layouts() gives them.
  template <class... Args>
  auto layouts(Args&&... args) const {
    torch::jit::Stack stack;
    torch::jit::push(stack, std::forward<Args>(args)...);
    return layouts_of(std::move(stack));
  }

 private:
  void run(torch::jit::Stack& stack) const;
  c10::SmallVector<SpecPtr, 8> layouts_of(torch::jit::Stack stack) const;

  OpInfo info_;
};

/// True if tensor dim `dim` (negative: from the end) is divided and the tensor has elements. A mesh dim of one rank divides nothing.
bool is_sharded_along(const at::Tensor& tensor, int64_t dim);
/// The same for any of `dims`, or for any dim at all if `dims` is empty.
bool is_sharded_along(const at::Tensor& tensor, c10::IntArrayRef dims);

/// The elements of an integer tensor in row-major order, for an operator that needs their values on the host: gathered to every rank if it is distributed.
Dims integers_in(const at::Tensor& tensor);

/// The tensor with every Partial reduced.
at::Tensor reduced(const at::Tensor& tensor);

/// The tensor in the dtype in which torch computes: float32 for half precision.
inline at::Tensor widened(const at::Tensor& tensor) {
  return at::isReducedFloatingType(tensor.scalar_type()) ? tensor.to(at::kFloat) : tensor;
}

}  // namespace shardwise
