// ops/support/by_rule.h: an operator by its rule, from a kernel of our own that answers only some of its calls otherwise.
//
//   static const ByRule softmax("aten::_softmax");
//   return softmax(self, dim, half_to_float).toTensor();
#pragma once

#include "runtime/dispatch/dispatch.h"
#include "runtime/tensor/dtensor_impl.h"

#include <utility>

namespace shardwise {

/// Pre: made when all rules are registered; lives as long as the process.
class ByRule {
 public:
  explicit ByRule(const char* name, const char* overload = "");

  /// The first result. Throws: as dispatch().
  template <class... Args>
  c10::IValue operator()(Args&&... args) const {
    return std::move(all(std::forward<Args>(args)...).front());
  }
  template <class... Args>
  torch::jit::Stack all(Args&&... args) const {
    torch::jit::Stack stack;
    torch::jit::push(stack, std::forward<Args>(args)...);
    dispatch(info_, &stack);
    return stack;
  }

 private:
  OpInfo info_;
};

/// True where a mesh dim cuts tensor dim `dim` (negative from the end) and there is something to compute: what only then combines
/// its pieces' results goes by its rule otherwise.
bool is_sharded_along(const at::Tensor& tensor, int64_t dim);
/// ... or one of these dims; without any, all of them count.
bool is_sharded_along(const at::Tensor& tensor, c10::IntArrayRef dims);

/// The tensor with every Partial reduced, once for all that read it.
at::Tensor reduced(const at::Tensor& tensor);

}  // namespace shardwise
