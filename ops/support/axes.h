// ops/support/axes.h: axes of new factors, axes of operands that broadcast, and operands by name.
#pragma once

#include "runtime/rules/rule.h"

namespace shardwise {

/// A new factor for each dim of `sizes`.
inline Axes add_axes(Signature& signature, c10::IntArrayRef sizes, bool is_whole = false) {
  Axes axes;
  for (int64_t size : sizes) {
    axes.push_back({signature.add_factor(size)});
    signature.factors.back().is_whole = is_whole;
  }
  return axes;
}

/// The axes of a tensor of `sizes` that broadcasts to `result`: the result's last axes, without a factor where the tensor expands.
inline Axes broadcast_axes(c10::IntArrayRef sizes, c10::IntArrayRef result, const Axes& result_axes) {
  TORCH_INTERNAL_ASSERT(sizes.size() <= result.size(), sizes, " does not broadcast to ", result);
  Axes axes(sizes.size());
  for (size_t dim = 0; dim < sizes.size(); ++dim) {
    const size_t at = result.size() - sizes.size() + dim;
    if (sizes[dim] == result[at]) axes[dim] = result_axes[at];
  }
  return axes;
}

/// The schema's name of the argument, as in "weight".
inline const std::string& arg_name(const OpCall& call, const Operand& operand) {
  return call.op.handle.schema().arguments()[operand.arg].name();
}

}  // namespace shardwise
