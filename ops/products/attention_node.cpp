// ops/products/attention_node.cpp: a fused attention operator with its history.
#include "ops/products/fused_attention.h"
#include "ops/products/product_node.h"
#include "runtime/api/gradients.h"
#include "runtime/tensor/autograd_node.h"
#include "text/check.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/autograd/functions/basic_ops.h>
#include <torch/csrc/autograd/saved_variable.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <mutex>
#include <string>

namespace shardwise {
namespace {

using at::SDPBackend;
using at::Tensor;
using torch::autograd::variable_list;

/// torch's operator for a backend other than SDPBackend::math.
const char* op_of(SDPBackend backend, bool is_on_cpu) {
  switch (backend) {
    case SDPBackend::flash_attention:
      return is_on_cpu ? "aten::_scaled_dot_product_flash_attention_for_cpu"
                       : "aten::_scaled_dot_product_flash_attention";
    case SDPBackend::efficient_attention:
      return "aten::_scaled_dot_product_efficient_attention";
    case SDPBackend::cudnn_attention:
      return "aten::_scaled_dot_product_cudnn_attention";
    default:
      return "aten::_scaled_dot_product_fused_attention_overrideable";
  }
}

/// "aten::_mul_add": "MulAddBackward0", as torch names its nodes.
std::string node_name(std::string_view op) {
  std::string name;
  bool begins = true;
  for (const char c : op.substr(op.find("::") + 2)) {
    if (c != '_') name += begins ? static_cast<char>(std::toupper(c)) : c;
    begins = c == '_';
  }
  return name + "Backward0";
}

/// The node of fused operators in torch's graph. torch's own node would copy the statistics too. The output is saved as an alias without history,
/// because output and node would otherwise keep each other alive.
struct AttentionBackward final : torch::autograd::Node {
  std::optional<Fused> fused;
  std::array<torch::autograd::SavedVariable, 7> kept;  // query, key, value, mask, output, logsumexp, random

  variable_list apply(variable_list&& grads) override {
    const std::lock_guard lock(mutex_);
    variable_list result(num_outputs());
    if (!grads[0].defined()) return result;
    std::array<Tensor, 7> known;
    std::ranges::transform(kept, known.begin(), [](const auto& saved) { return saved.unpack(); });
    const auto& [query, key, value, mask, output, logsumexp, random] = known;
    std::tie(result[0], result[1], result[2], result[3]) =
        fused->backward(grads[0], query, key, value, mask, {output, logsumexp, random}, task_should_compute_output(3));
    if (c10::GradMode::is_enabled()) {  // torch has no second derivative either
      auto node = make_node<torch::autograd::NotImplemented>(std::string(fused->op) + "_backward");
      node->set_next_edges(torch::autograd::collect_next_edges(grads[0], query, key, value));
      torch::autograd::set_history(result, node);
    }
    return result;
  }
  void release_variables() override {
    const std::lock_guard lock(mutex_);
    for (auto& saved : kept) saved.reset_data();
  }
  std::string name() const override { return node_name(fused->op); }
};

}  // namespace

Tensor fused_attention(SDPBackend backend, const Tensor& query, const Tensor& key, const Tensor& value,
                       const MaybeTensor& given_mask, double dropout_p, bool is_causal, std::optional<double> scale) {
  const Fused fused{op_of(backend, query.device().is_cpu()), backend, dropout_p, is_causal, scale};
  SW_CHECK_NOT_IMPLEMENTED(
      !have_tangents(query, key, value),
      "[{}] torch has no forward mode of this operator. Use torch.nn.attention.sdpa_kernel(SDPBackend.MATH).",
      fused.op);
  const Tensor mask = given_mask.value_or(Tensor());
  const bool is_below = c10::impl::tls_local_dispatch_key_set().excluded_.has(c10::DispatchKey::AutogradFunctionality);
  const bool keeps =
      !is_below && (records(query) || records(key) || records(value) || (mask.defined() && records(mask)));
  const Attended result = [&] {
    const at::AutoDispatchBelowAutograd guard;
    return fused.forward(query, key, value, mask, keeps);
  }();
  if (!keeps) return result.output;
  auto node = make_node<AttentionBackward>();
  node->set_next_edges(torch::autograd::collect_next_edges(query, key, value, mask));
  node->fused = fused;
  const std::array<Tensor, 7> kept{query,        key, value, mask, result.output.tensor_data(), result.logsumexp,
                                   result.random};
  for (size_t i = 0; i < kept.size(); ++i) node->kept[i] = torch::autograd::SavedVariable(kept[i], /*is_output=*/false);
  torch::autograd::set_history(result.output, node);
  return result.output;
}

}  // namespace shardwise
