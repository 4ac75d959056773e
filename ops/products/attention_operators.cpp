// ops/products/attention_operators.cpp: torch's fused attention operators and their backwards, on distributed tensors.
#include "ops/families.h"
#include "ops/products/fused_attention.h"
#include "ops/support/kernels.h"
#include "runtime/api/dtensor.h"
#include "runtime/dispatch/gather_fallback.h"

#include <ATen/ops/_scaled_dot_product_flash_attention.h>

namespace shardwise {
namespace {

using at::SDPBackend;
using at::Tensor;
using Two = std::tuple<Tensor, Tensor>;
using Three = std::tuple<Tensor, Tensor, Tensor>;
using Four = std::tuple<Tensor, Tensor, Tensor, Tensor>;
using Nine = std::tuple<Tensor, Tensor, Tensor, Tensor, c10::SymInt, c10::SymInt, Tensor, Tensor, Tensor>;

Three first_three(Four all) { return {std::get<0>(all), std::get<1>(all), std::get<2>(all)}; }

Two flash_on_cpu(const Tensor& query, const Tensor& key, const Tensor& value, double dropout_p, bool is_causal,
                 const MaybeTensor& mask, std::optional<double> scale) {
  const Fused fused{"aten::_scaled_dot_product_flash_attention_for_cpu", SDPBackend::flash_attention, dropout_p,
                    is_causal, scale};
  const Attended result = fused.forward(query, key, value, mask);
  return {result.output, result.logsumexp};
}

Three flash_on_cpu_backward(const Tensor& grad, const Tensor& query, const Tensor& key, const Tensor& value,
                            const Tensor& output, const Tensor& logsumexp, double dropout_p, bool is_causal,
                            const MaybeTensor& mask, std::optional<double> scale) {
  const Fused fused{"aten::_scaled_dot_product_flash_attention_for_cpu_backward", SDPBackend::flash_attention,
                    dropout_p, is_causal, scale};
  return first_three(fused.backward(grad, query, key, value, mask, {output, logsumexp, {}}));
}

/// The nine results of torch's operator. `random` takes the place of both seed and offset.
Nine nine(const Attended& result, const Tensor& logsumexp, const Tensor& query, const Tensor& key) {
  return {result.output,
          logsumexp,
          {},
          {},
          query.size(2),
          key.size(2),
          result.random,
          result.random,
          result.output.new_empty({0})};
}

/// The weights of a debug mask are padded, so every rank computes all of them.
Nine flash_with_weights(const char* op, const Tensor& query, const Tensor& key, const Tensor& value, double dropout_p,
                        bool is_causal, std::optional<double> scale) {
  const MeshPtr& mesh = spec_of(is_dtensor(query) ? query : is_dtensor(key) ? key : value)->mesh();
  if (!mesh->is_member()) refuse_outside(op, *mesh);
  const auto whole = [&](const Tensor& tensor) { return is_dtensor(tensor) ? full_tensor(tensor) : tensor; };
  Nine results = at::_scaled_dot_product_flash_attention(whole(query), whole(key), whole(value), dropout_p, is_causal,
                                                         /*return_debug_mask=*/true, scale);
  std::apply(
      [&](auto&... result) {
        const auto wrap = [&]<class Value>(Value& value) {
          if constexpr (std::is_same_v<Value, Tensor>)
            if (value.defined())
              value = from_pieces({value}, Spec::intern(mesh, value.sizes(), Placements(mesh->ndim()), value.strides(),
                                                        value.scalar_type()));
        };
        (wrap(result), ...);
      },
      results);
  return results;
}

Nine flash(const Tensor& query, const Tensor& key, const Tensor& value, double dropout_p, bool is_causal,
           bool return_debug_mask, std::optional<double> scale) {
  const Fused fused{"aten::_scaled_dot_product_flash_attention", SDPBackend::flash_attention, dropout_p, is_causal,
                    scale};
  if (return_debug_mask) return flash_with_weights(fused.op, query, key, value, dropout_p, is_causal, scale);
  const Attended result = fused.forward(query, key, value, std::nullopt);
  return nine(result, result.logsumexp, query, key);
}

Three flash_backward(const Tensor& grad, const Tensor& query, const Tensor& key, const Tensor& value,
                     const Tensor& output, const Tensor& logsumexp, const Tensor& /*cum_seq_q*/,
                     const Tensor& /*cum_seq_k*/, c10::SymInt /*max_q*/, c10::SymInt /*max_k*/, double dropout_p,
                     bool is_causal, const Tensor& random, const Tensor& /*offset*/, std::optional<double> scale) {
  const Fused fused{"aten::_scaled_dot_product_flash_attention_backward", SDPBackend::flash_attention, dropout_p,
                    is_causal, scale};
  return first_three(fused.backward(grad, query, key, value, std::nullopt, {output, logsumexp, random}));
}

Four efficient(const Tensor& query, const Tensor& key, const Tensor& value, const MaybeTensor& mask,
               bool /*compute_log_sumexp*/, double dropout_p, bool is_causal, std::optional<double> scale) {
  const Fused fused{"aten::_scaled_dot_product_efficient_attention", SDPBackend::efficient_attention, dropout_p,
                    is_causal, scale};
  const Attended result = fused.forward(query, key, value, mask);
  return {result.output, result.logsumexp, result.random, result.random};
}

Four efficient_backward(const Tensor& grad, const Tensor& query, const Tensor& key, const Tensor& value,
                        const Tensor& mask, const Tensor& output, const Tensor& logsumexp, const Tensor& random,
                        const Tensor& /*offset*/, double dropout_p, std::array<bool, 4> wanted, bool is_causal,
                        std::optional<double> scale) {
  const Fused fused{"aten::_scaled_dot_product_efficient_attention_backward", SDPBackend::efficient_attention,
                    dropout_p, is_causal, scale};
  return fused.backward(grad, query, key, value, mask, {output, logsumexp, random}, wanted[3]);
}

Nine cudnn(const Tensor& query, const Tensor& key, const Tensor& value, const MaybeTensor& mask,
           bool /*compute_log_sumexp*/, double dropout_p, bool is_causal, bool /*return_debug_mask*/,
           std::optional<double> scale) {
  const Fused fused{"aten::_scaled_dot_product_cudnn_attention", SDPBackend::cudnn_attention, dropout_p, is_causal,
                    scale};
  const Attended result = fused.forward(query, key, value, mask);
  return nine(result, result.logsumexp.unsqueeze(-1), query, key);
}

Three cudnn_backward(const Tensor& grad, const Tensor& query, const Tensor& key, const Tensor& value,
                     const Tensor& output, const Tensor& logsumexp, const Tensor& random, const Tensor& /*offset*/,
                     const Tensor& mask, const Tensor& /*cum_seq_q*/, const Tensor& /*cum_seq_k*/,
                     c10::SymInt /*max_q*/, c10::SymInt /*max_k*/, double dropout_p, bool is_causal,
                     std::optional<double> scale) {
  const Fused fused{"aten::_scaled_dot_product_cudnn_attention_backward", SDPBackend::cudnn_attention, dropout_p,
                    is_causal, scale};
  return first_three(fused.backward(grad, query, key, value, mask, {output, logsumexp.squeeze(-1), random}));
}

Nine overrideable(const Tensor& query, const Tensor& key, const Tensor& value, const MaybeTensor& mask,
                  double dropout_p, bool is_causal, bool /*return_debug_mask*/, std::optional<double> scale) {
  const Fused fused{"aten::_scaled_dot_product_fused_attention_overrideable", SDPBackend::overrideable, dropout_p,
                    is_causal, scale};
  const Attended result = fused.forward(query, key, value, mask);
  return nine(result, result.logsumexp, query, key);
}

Four overrideable_backward(const Tensor& grad, const Tensor& query, const Tensor& key, const Tensor& value,
                           const Tensor& mask, std::array<bool, 4> wanted, const Tensor& output,
                           const Tensor& logsumexp, const Tensor& /*cum_seq_q*/, const Tensor& /*cum_seq_k*/,
                           c10::SymInt /*max_q*/, c10::SymInt /*max_k*/, double dropout_p, bool is_causal,
                           const Tensor& random, const Tensor& /*offset*/, std::optional<double> scale) {
  const Fused fused{"aten::_scaled_dot_product_fused_attention_overrideable_backward", SDPBackend::overrideable,
                    dropout_p, is_causal, scale};
  return fused.backward(grad, query, key, value, mask, {output, logsumexp, random}, wanted[3]);
}

}  // namespace

void register_attention_operators() {
  AtenKernels& kernels = aten_kernels();
  kernels.impl("_scaled_dot_product_flash_attention_for_cpu", &flash_on_cpu);
  kernels.impl("_scaled_dot_product_flash_attention_for_cpu_backward", &flash_on_cpu_backward);
  kernels.impl("_scaled_dot_product_flash_attention", &flash);
  kernels.impl("_scaled_dot_product_flash_attention_backward", &flash_backward);
  kernels.impl("_scaled_dot_product_efficient_attention", &efficient);
  kernels.impl("_scaled_dot_product_efficient_attention_backward", &efficient_backward);
  kernels.impl("_scaled_dot_product_cudnn_attention", &cudnn);
  kernels.impl("_scaled_dot_product_cudnn_attention_backward", &cudnn_backward);
  kernels.impl("_scaled_dot_product_fused_attention_overrideable", &overrideable);
  kernels.impl("_scaled_dot_product_fused_attention_overrideable_backward", &overrideable_backward);
}

}  // namespace shardwise
