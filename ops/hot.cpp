// ops/hot.cpp: unboxed kernels for the operators that models call most; each has its rule.
#include "ops/families.h"
#include "ops/support/kernels.h"
#include "runtime/dispatch/unboxed.h"

#include <ATen/Functions.h>

namespace shardwise {
namespace {

template <class... Ops>
void add_all(torch::Library& library) {
  (add_unboxed<Ops>(library), ...);
}

}  // namespace

void register_hot(RuleTable& /*table*/) {
  namespace op = at::_ops;
  add_all<op::add_Tensor, op::add__Tensor, op::sub_Tensor, op::sub__Tensor, op::mul_Tensor, op::mul__Tensor,
          op::div_Tensor, op::div__Tensor, op::cat, op::mm, op::bmm, op::linear, op::t, op::transpose_int,
          op::unsqueeze, op::squeeze_dims, op::view, op::expand, op::sum, op::sum_dim_IntList, op::relu, op::gelu,
          op::silu, op::sigmoid, op::sigmoid_, op::sigmoid_backward, op::tanh, op::tanh_, op::tanh_backward, op::exp,
          op::sqrt, op::rsqrt, op::neg, op::threshold_backward>(aten_kernels().library());
  // the operators of optimizers
  add_all<op::_foreach_add_List, op::_foreach_add__List, op::_foreach_add_Scalar, op::_foreach_add__Scalar,
          op::_foreach_add__ScalarList, op::_foreach_sub_List, op::_foreach_sub__List, op::_foreach_mul_List,
          op::_foreach_mul__List, op::_foreach_mul_Scalar, op::_foreach_mul__Scalar, op::_foreach_mul__ScalarList,
          op::_foreach_mul__Tensor, op::_foreach_div__List, op::_foreach_div__Scalar, op::_foreach_div__ScalarList,
          op::_foreach_lerp__List, op::_foreach_lerp__Scalar, op::_foreach_addcmul__Scalar,
          op::_foreach_addcdiv__Scalar, op::_foreach_addcdiv__ScalarList, op::_foreach_sqrt, op::_foreach_sqrt_,
          op::_foreach_neg, op::_foreach_neg_, op::_foreach_sign_, op::_foreach_maximum__List, op::_foreach_copy_,
          op::_foreach_zero_, op::_fused_adam_, op::_fused_adam__tensor_lr, op::_fused_adamw_,
          op::_fused_adamw__tensor_lr, op::_fused_sgd_, op::_fused_sgd__tensor_lr, op::_fused_adagrad_>(
      aten_kernels().library());
}

}  // namespace shardwise
