// ops/flat_derivatives.cpp: steps, whose derivative is zero. Torch's formulas make plain zeros of the right shape; here they are
// laid out as the operand.
#include "ops/families.h"
#include "ops/kernels.h"

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

/// The sign of one operand on the size of the other, whose sign may turn the gradient.
struct Copysign : torch::autograd::Function<Copysign> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& self, const at::Tensor& other) {
    at::AutoDispatchBelowADInplaceOrView guard;
    at::Tensor result = at::copysign(self, other);
    ctx->save_for_backward({self, other, result});
    return result;
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const variable_list saved = ctx->get_saved_variables();
    const at::Tensor &self = saved[0], &other = saved[1], &result = saved[2];
    const at::Tensor turned = (result / self).masked_fill(self.eq(0), 0) * grads[0];
    return {turned.to(self.scalar_type()).sum_to_size(self.sizes()), at::zeros_like(other)};
  }
};

/// The next number towards the other operand, whose value decides only the direction.
struct Nextafter : torch::autograd::Function<Nextafter> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& self, const at::Tensor& other) {
    at::AutoDispatchBelowADInplaceOrView guard;
    ctx->save_for_backward({self, other});
    return at::nextafter(self, other);
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const variable_list saved = ctx->get_saved_variables();
    return {grads[0].sum_to_size(saved[0].sizes()), at::zeros_like(saved[1])};
  }
};

at::Tensor nextafter(const at::Tensor& self, const at::Tensor& other) { return Nextafter::apply(self, other); }

at::Tensor copysign(const at::Tensor& self, const at::Tensor& other) { return Copysign::apply(self, other); }

at::Tensor sgn(const at::Tensor& self) { return Sgn::apply(self); }

}  // namespace

void register_flat_derivatives() {
  aten_autograd_kernels().impl("sgn", &sgn);
  aten_autograd_kernels().impl("copysign.Tensor", &copysign);
  aten_autograd_kernels().impl("nextafter", &nextafter);
}

}  // namespace shardwise
