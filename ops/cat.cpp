// ops/cat.cpp: tensors side by side.
#include "ops/families.h"

namespace shardwise {
namespace {

int64_t dim_in(const OpCall& call, size_t n_dims) {
  const int64_t dim = call.arg("dim").toInt();
  return dim < 0 ? dim + static_cast<int64_t>(n_dims) : dim;
}

Axes all_factors(size_t n) {
  Axes axes;
  for (size_t i = 0; i < n; ++i) axes.push_back({static_cast<int>(i)});
  return axes;
}

/// The dim of concatenation is whole. Tensors of shape [0] count for nothing, whatever the others' dims.
void describe_cat(const OpCall& call, Signature& signature) {
  const Dims& sizes = call.outputs[0].sizes;
  for (int64_t size : sizes) signature.add_factor(size);
  signature.factors[dim_in(call, sizes.size())].is_whole = true;
  for (const Operand& operand : call.operands)
    signature.inputs.push_back(operand.sizes.size() == sizes.size() ? all_factors(sizes.size()) : Axes(operand.sizes.size()));
  signature.outputs.push_back(all_factors(sizes.size()));
}

/// The new dim belongs to no operand.
void describe_stack(const OpCall& call, Signature& signature) {
  const c10::IntArrayRef sizes = call.operands[0].sizes;
  for (int64_t size : sizes) signature.add_factor(size);
  signature.inputs.assign(call.operands.size(), all_factors(sizes.size()));
  Axes output = all_factors(sizes.size());
  output.insert(output.begin() + dim_in(call, sizes.size() + 1), Axis{});
  signature.outputs.push_back(output);
}

}  // namespace

void register_cat(RuleTable& table) {
  table.add("aten::cat", Rule("cat", describe_cat).linear());
  table.add("aten::stack", Rule("stack", describe_stack).linear());
}

}  // namespace shardwise
