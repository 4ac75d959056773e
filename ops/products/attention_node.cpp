// ops/products/attention_node.cpp: a fused attention operator with its history.
#include "ops/products/fused_attention.h"
#include "ops/support/derivative.h"
#include "runtime/api/gradients.h"
#include "runtime/tensor/autograd_node.h"
#include "text/check.h"

#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/autograd/functions/basic_ops.h>

#include <string>

namespace shardwise {
namespace {

using at::SDPBackend;
using at::Tensor;

/// torch's operator for a backend other than SDPBackend::math, and the name of its node.
struct Named {
  const char *op, *node;
};

Named name_of(SDPBackend backend, bool is_on_cpu) {
  switch (backend) {
    case SDPBackend::flash_attention:
      return is_on_cpu ? Named{"aten::_scaled_dot_product_flash_attention_for_cpu",
                               "ScaledDotProductFlashAttentionForCpuBackward0"}
                       : Named{"aten::_scaled_dot_product_flash_attention", "ScaledDotProductFlashAttentionBackward0"};
    case SDPBackend::efficient_attention:
      return {"aten::_scaled_dot_product_efficient_attention", "ScaledDotProductEfficientAttentionBackward0"};
    case SDPBackend::cudnn_attention:
      return {"aten::_scaled_dot_product_cudnn_attention", "ScaledDotProductCudnnAttentionBackward0"};
    default:
      return {"aten::_scaled_dot_product_fused_attention_overrideable",
              "ScaledDotProductFusedAttentionOverrideableBackward0"};
  }
}

/// torch has no second derivative either.
void refuse_second_derivative(const char* op, const Tensor& grad, const variable_list& saved, variable_list& result) {
  auto node = make_node<torch::autograd::NotImplemented>(std::string(op) + "_backward");
  node->set_next_edges(torch::autograd::collect_next_edges(grad, saved[0], saved[1], saved[2]));
  torch::autograd::set_history(result, node);
}

}  // namespace

Tensor fused_attention(SDPBackend backend, const Tensor& query, const Tensor& key, const Tensor& value,
                       const MaybeTensor& given_mask, double dropout_p, bool is_causal, std::optional<double> scale) {
  const auto [op, node_name] = name_of(backend, takes_cpu_kernels(query));
  const Fused fused{op, backend, dropout_p, is_causal, scale};
  SW_CHECK_NOT_IMPLEMENTED(
      !has_tangent(query) && !has_tangent(key) && !has_tangent(value),
      "[{}] torch has no forward mode of this operator. Use torch.nn.attention.sdpa_kernel(SDPBackend.MATH).", op);
  const Tensor mask = given_mask.value_or(Tensor());
  const bool is_below = c10::impl::tls_local_dispatch_key_set().excluded_.has(c10::DispatchKey::AutogradFunctionality);
  const bool keeps =
      !is_below && (records(query) || records(key) || records(value) || (mask.defined() && records(mask)));
  const Attended result = below_derivatives([&] { return fused.forward(query, key, value, mask, keeps); });
  if (!keeps) return result.output;
  // torch's own node would copy the statistics too. The output is saved as an alias without history, because output and node would otherwise keep each
  // other alive.
  return with_derivative({query, key, value, mask}, result.output,
                         {query, key, value, mask, result.output.tensor_data(), result.logsumexp, result.random},
                         node_name, [fused](const Tensor& grad, const variable_list& saved, const Wanted& wanted) {
                           variable_list grads(4);
                           std::tie(grads[0], grads[1], grads[2], grads[3]) =
                               fused.backward(grad, saved[0], saved[1], saved[2], saved[3],
                                              {saved[4], saved[5], saved[6]}, /*with_mask=*/wanted[3]);
                           if (c10::GradMode::is_enabled()) refuse_second_derivative(fused.op, grad, saved, grads);
                           return grads;
                         });
}

}  // namespace shardwise
