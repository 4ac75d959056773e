// ops/shapes/cat.cpp: concatenation along a dim (cat) and along a new dim (stack).
#include "ops/families.h"
#include "ops/support/kernels.h"
#include "ops/support/plain_gradients.h"
#include "runtime/tensor/registrations.h"

#include <ATen/ops/cat_ops.h>
#include <c10/core/WrapDimMinimal.h>

#include <algorithm>

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

/// The concatenated dim is whole: each operand has a factor of its own there, and the result another one. Tensors of shape [0] are ignored, even if
/// the other tensors have more dims.
void describe_cat(const OpCall& call, Signature& signature) {
  const auto counts = [](const Operand& operand) { return operand.sizes.size() != 1 || operand.sizes[0] != 0; };
  const auto first = std::ranges::find_if(call.operands, counts);
  const c10::IntArrayRef sizes = (first == call.operands.end() ? call.operands.begin() : first)->sizes;
  const auto dim = static_cast<size_t>(dim_in(call, sizes.size()));
  for (int64_t size : sizes) signature.add_factor(size);
  const Axes result = all_factors(sizes.size());
  if (dim < sizes.size()) signature.factors[dim] = {.size = 0, .is_whole = true};
  for (const Operand& operand : call.operands) {
    const bool is_joined = dim < sizes.size() && operand.sizes.size() == sizes.size();
    Axes axes = is_joined ? result : Axes();
    if (is_joined) {
      axes[dim] = {signature.add_factor(operand.sizes[dim])};
      signature.factors.back().is_whole = true;
      signature.factors[dim].size += operand.sizes[dim];
    } else {
      for (int64_t size : operand.sizes) {
        axes.push_back({signature.add_factor(size, /*is_whole=*/true)});
      }
    }
    signature.inputs.push_back(std::move(axes));
  }
  signature.outputs.push_back(result);
}

/// The new dim has no factor: no operand has it.
void describe_stack(const OpCall& call, Signature& signature) {
  const c10::IntArrayRef sizes = call.operands[0].sizes;
  for (int64_t size : sizes) signature.add_factor(size);
  signature.inputs.assign(call.operands.size(), all_factors(sizes.size()));
  Axes output = all_factors(sizes.size());
  output.insert(output.begin() + c10::maybe_wrap_dim(call.arg("dim").toInt(), static_cast<int64_t>(sizes.size()) + 1),
                Axis{});
  signature.outputs.push_back(output);
}

/// torch's derivative formula gives operands of shape [0] plain gradients.
at::Tensor differentiable_cat(c10::DispatchKeySet keys, const at::ITensorListRef& tensors, int64_t dim) {
  const auto is_nothing = [](const at::Tensor& tensor) {
    return tensor.dim() == 1 && tensor.sym_numel() == 0 && tensor.requires_grad();
  };
  if (std::ranges::none_of(tensors, is_nothing)) return at::_ops::cat::redispatch(formula_keys(keys), tensors, dim);
  std::vector<at::Tensor> inputs;
  for (const at::Tensor& tensor : tensors)
    inputs.push_back(is_nothing(tensor) ? with_distributed_gradient(tensor) : tensor);
  return at::_ops::cat::redispatch(formula_keys(keys), inputs, dim);
}

}  // namespace

void register_cat(RuleTable& table) {
  table.add("aten::cat", Rule("cat", describe_cat).linear().sampled());
  aten_autograd_kernels().library().impl("cat", torch::CppFunction::makeFromUnboxedFunction(&differentiable_cat));
  table.keep_symbols({"aten::cat", "aten::stack"});
  table.add("aten::stack", Rule("stack", describe_stack).linear().sampled());
}

}  // namespace shardwise
