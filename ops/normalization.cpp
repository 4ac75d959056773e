// ops/normalization.cpp: layer norm: what is normalised is whole, the other dims may be cut.
#include "ops/families.h"

#include <string_view>

namespace shardwise {
namespace {

/// Batch dims are shared by all but weight and bias; the trailing, normalised dims are whole. Mean and rstd have 1 in their
/// place. Gradients of weight and bias are summed over the batch.
struct LayerNorm {
  Axes all, statistics, parameter;

  LayerNorm(const OpCall& call, Signature& signature) {
    const c10::IntArrayRef sizes = call.operands[call.operand_at("input")].sizes;
    const size_t n_batch = sizes.size() - call.arg("normalized_shape").toListRef().size();
    for (size_t dim = 0; dim < sizes.size(); ++dim) {
      const Axis axis{signature.add_factor(sizes[dim])};
      const bool is_batch = dim < n_batch;
      signature.factors.back().is_whole = !is_batch;
      all.push_back(axis);
      statistics.push_back(is_batch ? axis : Axis{});
      if (!is_batch) parameter.push_back(axis);
    }
    for (const Operand& operand : call.operands)
      signature.inputs.push_back(axes_of(call.op.handle.schema().arguments()[operand.arg].name()));
  }

  const Axes& axes_of(std::string_view name) const {
    if (name == "weight" || name == "bias") return parameter;
    return name == "mean" || name == "rstd" ? statistics : all;
  }
};

void describe_layer_norm(const OpCall& call, Signature& signature) {
  const LayerNorm norm(call, signature);
  signature.outputs = {norm.all, norm.statistics, norm.statistics};
}

void describe_layer_norm_backward(const OpCall& call, Signature& signature) {
  const LayerNorm norm(call, signature);
  signature.outputs = {norm.all, norm.parameter, norm.parameter};
}

}  // namespace

void register_normalization(RuleTable& table) {
  table.add("aten::native_layer_norm", Rule("layer_norm", describe_layer_norm).sampled());
  table.add("aten::native_layer_norm_backward",
            Rule("layer_norm_backward", describe_layer_norm_backward).sampled().linear_in_first());
}

}  // namespace shardwise
