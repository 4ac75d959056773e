#include "ops/support/plain_gradients.h"

#include "ops/families.h"
#include "ops/support/derivative.h"
#include "ops/support/kernels.h"
#include "placements/placement_list.h"
#include "runtime/api/dtensor.h"
#include "runtime/rules/op_info.h"
#include "runtime/tensor/registrations.h"

#include <algorithm>
#include <memory>
#include <utility>

namespace shardwise {
namespace {

/// Calls the operator `out_of_place`, whose gradients are distributed, and copies its result into the operand that `op` writes to.
class ByCopy final : public c10::OperatorKernel {
 public:
  explicit ByCopy(c10::OperatorHandle out_of_place) : out_of_place_(std::move(out_of_place)) {}

  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
    const size_t n = op.schema().arguments().size();
    const bool is_recorded =
        c10::GradMode::is_enabled() && std::ranges::any_of(torch::jit::last(*stack, n), [](const c10::IValue& each) {
          return each.isTensor() && each.toTensor().requires_grad();
        });
    if (!is_recorded) return op.redispatchBoxed(formula_keys(keys), stack);
    c10::IValue& operand = torch::jit::peek(*stack, 0, n);
    const at::Tensor written = operand.toTensor();
    operand = written.clone();  // the backward reads it
    out_of_place_.callBoxed(stack);
    stack->back() = written.copy_(stack->back().toTensor());
  }

 private:
  c10::OperatorHandle out_of_place_;
};

/// Calls torch's derivative formula on inputs whose gradients are distributed.
class Guarded final : public c10::OperatorKernel {
 public:
  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
    if (c10::GradMode::is_enabled())
      for (size_t i = stack->size() - op.schema().arguments().size(); i < stack->size(); ++i)
        if ((*stack)[i].isTensor()) (*stack)[i] = with_distributed_gradient((*stack)[i].toTensor());
    op.redispatchBoxed(formula_keys(keys), stack);
  }
};

}  // namespace

at::Tensor with_distributed_gradient(const at::Tensor& input) {
  auto* impl = maybe_dtensor(input);
  if (!impl || !input.requires_grad() || has_tangent(input)) return input;
  prepare_operand(*impl);
  at::Tensor same(impl->shallow_copy_and_detach(impl->version_counter(), /*allow_change=*/false));
  // A plain gradient is equal on all ranks, so each rank takes its shard of it.
  return with_derivative(input, same, {}, "LaidOutBackward",
                         [spec = impl->spec()](const at::Tensor& grad, const auto&) {
                           if (is_dtensor(grad)) return grad;
                           const auto& mesh = spec->mesh();
                           const at::Tensor replica = replica_of(grad, mesh);
                           return redistribute(replica, without_partial(spec->placements()));
                         });
}

void lay_out_gradients(const std::string& op) {
  aten_autograd_kernels().impl(op.c_str(), torch::CppFunction::makeFromBoxedFunctor(std::make_unique<Guarded>()));
}

void register_plain_gradients(RuleTable& /*table*/) {
  for (const char* op : {"copysign.Tensor", "fractional_max_pool2d_backward", "fractional_max_pool3d_backward",
                         "linalg_matrix_exp", "nextafter", "_prelu_kernel_backward", "normal.Tensor_float",
                         "normal.float_Tensor", "normal.Tensor_Tensor", "repeat", "sgn"})
    lay_out_gradients(op);
  for (const auto& [in_place, op] : {std::pair("copysign_.Tensor", "aten::copysign.Tensor"),
                                     std::pair("nextafter_", "aten::nextafter"), std::pair("sgn_", "aten::sgn")})
    aten_autograd_kernels().impl(
        in_place, torch::CppFunction::makeFromBoxedFunctor(std::make_unique<ByCopy>(*find_operator(op))));
}

}  // namespace shardwise
