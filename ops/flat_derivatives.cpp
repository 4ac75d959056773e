// ops/flat_derivatives.cpp: steps, whose derivative is zero. Torch's formulas make plain zeros of the right shape; here they are
// laid out as the operand.
#include "ops/families.h"
#include "ops/kernels.h"
#include "runtime/below.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/copysign.h>
#include <ATen/ops/nextafter.h>
#include <ATen/ops/real.h>
#include <ATen/ops/sgn.h>
#include <ATen/ops/zeros_like.h>
#include <torch/csrc/autograd/custom_function.h>

namespace shardwise {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct Sgn : torch::autograd::Function<Sgn> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& self) {
    at::AutoDispatchBelowADInplaceOrView guard;
    at::Tensor result = at::sgn(self);
    ctx->save_for_backward(self.is_complex() ? variable_list{self, result} : variable_list{});
    return result;
  }
  /// Of a complex number, which is a point of the unit circle: what of the gradient runs along the circle, by the distance.
  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const variable_list saved = ctx->get_saved_variables();
    if (saved.empty()) return {at::zeros_like(grads[0])};
    const at::Tensor &self = saved[0], &sign = saved[1];
    const at::Tensor size = self.abs();
    const at::Tensor along = grads[0].sub(sign.mul(at::real(sign.conj_physical().mul(grads[0])))).div(size);
    return {along.masked_fill(size.eq(0), 0)};
  }
};

at::Tensor sgn(const at::Tensor& self) { return Sgn::apply(self); }

}  // namespace

void register_flat_derivatives() { aten_autograd_kernels().impl("sgn", &sgn); }

}  // namespace shardwise
