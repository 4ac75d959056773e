// ops/products/fused_attention.h: torch's fused attention operators on distributed tensors.
#pragma once

#include "ops/products/attention_kernels.h"
#include "ops/support/maybe_tensor.h"

#include <tuple>

namespace shardwise {

/// The name of one of torch's operators, and the settings of its kernel.
struct Fused {
  const char* op;
  at::SDPBackend backend;
  double dropout_p;
  bool is_causal;
  std::optional<double> scale;

  /// Below autograd. One operand at least is distributed. `records`: also computes what the backward needs.
  /// Throws: c10::ValueError for operands that do not fit each other.
  Attended forward(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value, const MaybeTensor& mask,
                   bool records = true) const;
  /// The gradients of query, key, value and, if `with_mask`, of the mask.
  std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> backward(const at::Tensor& grad, const at::Tensor& query,
                                                                      const at::Tensor& key, const at::Tensor& value,
                                                                      const MaybeTensor& mask, const Attended& saved,
                                                                      bool with_mask = false) const;
};

/// The result of torch's operator for `backend`, above autograd. If no gradients are recorded, nothing is computed for the backward.
/// Throws: as Fused::forward(); c10::NotImplementedError in forward mode.
at::Tensor fused_attention(at::SDPBackend backend, const at::Tensor& query, const at::Tensor& key,
                           const at::Tensor& value, const MaybeTensor& mask, double dropout_p, bool is_causal,
                           std::optional<double> scale);

/// torch's scaled_dot_product_attention on meta, by the kernel that torch picks on the kind of device that the program is planned for. On meta, torch
/// itself takes products and a softmax, which keep the scores of all pairs.
at::Tensor planned_attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                             const MaybeTensor& mask, double dropout_p, bool is_causal, std::optional<double> scale,
                             bool enable_gqa);

}  // namespace shardwise
