// ops/spatial/convolution.cpp: convolutions, plain and transposed, of any number of groups. Batch and channels may be sharded. convolution_halo.cpp
// handles sharded spatial dims if it can; otherwise they are gathered.
//
// Our own operators compute them: they have meta kernels outside Python, accept empty shards, and leave the gradient of
// the bias to sum().
#include "ops/spatial/convolution.h"
#include "ops/families.h"
#include "ops/support/kernels.h"
#include "ops/support/maybe_tensor.h"
#include "ops/support/own_operator.h"
#include "runtime/api/dtensor.h"

#include <ATen/Functions.h>

#include <algorithm>

namespace shardwise {
namespace {

using Grads = std::tuple<at::Tensor, at::Tensor>;

/// "ni…,oi…->no…"; a transposed weight is "io…". With several groups, channels are sharded between groups only.
struct ConvolutionAxes {
  Axes input, weight, result;

  ConvolutionAxes(const OpCall& call, c10::IntArrayRef input_sizes, c10::IntArrayRef weight_sizes,
                  Signature& signature) {
    const int64_t groups = call.arg("groups").toInt();
    const bool is_transposed = call.arg("transposed").toBool();
    const Axis batch{signature.add_factor(input_sizes[0])};
    input = {batch}, result = {batch};
    if (groups == 1) {
      const Axis from{signature.add_factor(input_sizes[1])};
      const Axis to{signature.add_factor(weight_sizes[is_transposed ? 1 : 0])};
      weight = {is_transposed ? from : to, is_transposed ? to : from};
      input.push_back(from);
      result.push_back(to);
    } else {
      const int group = signature.add_factor(groups);
      weight = {{group, weight_sizes[0] / groups}, {}};
      input.push_back({group, input_sizes[1] / groups});
      result.push_back({group, weight_sizes[is_transposed ? 1 : 0] / (is_transposed ? 1 : groups)});
    }
    for (Axes* axes : {&input, &weight, &result}) axes->resize(input_sizes.size());
  }
};

void describe_convolution(const OpCall& call, Signature& signature) {
  ConvolutionAxes axes(call, call.operands[0].sizes, call.operands[1].sizes, signature);
  signature.set({axes.input, axes.weight}, {axes.result});
  if (call.operands.size() > 2) {
    signature.inputs.push_back({axes.result[1]});
    signature.additive = {2};
  }
}

void describe_convolution_backward(const OpCall& call, Signature& signature) {
  ConvolutionAxes axes(call, call.operands[1].sizes, call.operands[2].sizes, signature);
  signature.set({axes.result, axes.input, axes.weight}, {axes.input, axes.weight});
}

/// The number of groups in this rank's weight.
void localize_groups(const LocalCall& local, std::vector<c10::IValue>& args) {
  const OpCall& call = local.call;
  const int weight = call.operand_at("weight");
  const int64_t groups = call.arg("groups").toInt(), n_rows = call.operands[weight].sizes[0];
  if (groups > 1) args[call.op.arg_index("groups")] = local.inputs[weight].sizes[0] * groups / n_rows;
}

at::Tensor compute(const at::Tensor& input, const at::Tensor& weight, const MaybeTensor& bias, c10::IntArrayRef stride,
                   c10::IntArrayRef padding, c10::IntArrayRef dilation, bool transposed,
                   c10::IntArrayRef output_padding, int64_t groups) {
  return convolve_piece(input, weight, bias, {stride, padding, dilation, transposed, output_padding, groups});
}

/// Throws: torch's errors, which torch throws only for inputs with elements.
void check_weight(const at::Tensor& input, const at::Tensor& weight, bool is_transposed, int64_t groups) {
  TORCH_CHECK_NOT_IMPLEMENTED(input.scalar_type() != at::kBool || input.numel() == 0,
                              "[aten::convolution] is not implemented for Bool. Convert the tensors first.");
  if (input.dim() < 3 || weight.dim() != input.dim() || groups <= 0) return;  // torch reports the error
  TORCH_CHECK(weight.size(0) >= groups, "Given groups=", groups, ", expected weight to be at least ", groups,
              " at dimension 0, but got weight of size ", weight.sizes(), " instead");
  TORCH_CHECK_NOT_IMPLEMENTED(input.size(1) > 0, "[aten::convolution] the input of shape ", input.sizes(),
                              " has no channels. Give it one at least.");
  const int64_t n_channels = is_transposed ? weight.size(0) : weight.size(1) * groups;
  TORCH_CHECK(input.size(1) == n_channels, "Given groups=", groups, ", weight of size ", weight.sizes(),
              ", expected input", input.sizes(), " to have ", n_channels, " channels, but got ", input.size(1),
              " channels instead");
  TORCH_CHECK(input.numel() == 0 || weight.numel() > 0, "[aten::convolution] the weight of shape ", weight.sizes(),
              " has no elements. Give it a kernel and channels of at least 1.");
}

at::Tensor dense(const at::Tensor& input, const at::Tensor& weight, const MaybeTensor& bias,
                 const ConvolutionScheme& scheme) {
  return at::convolution(input, weight, bias, scheme.stride, scheme.padding, scheme.dilation, scheme.is_transposed,
                         scheme.output_padding, scheme.groups);
}

/// The dense result's sizes. Runs the dense operator on an empty batch, which makes its checks without its work. If the operator rejects the empty
/// batch, runs it on the whole batch for its error.
Dims sizes_of_dense(const at::Tensor& input, const at::Tensor& weight, const MaybeTensor& bias,
                    const ConvolutionScheme& scheme) {
  const auto stand_in = [](const at::Tensor& tensor, c10::IntArrayRef sizes) {
    return at::zeros({1}, at::TensorOptions().dtype(tensor.scalar_type()).device(c10::kCPU)).expand(sizes);
  };
  Dims sizes(input.sizes());
  if (!sizes.empty() && input.numel() > 0) sizes[0] = input.scalar_type() == weight.scalar_type() ? 0 : 1;
  MaybeTensor stand_in_bias;
  if (bias && bias->defined()) stand_in_bias = stand_in(*bias, bias->sizes());
  const auto run_on = [&](c10::IntArrayRef input_sizes) {
    return dense(stand_in(input, input_sizes), stand_in(weight, weight.sizes()), stand_in_bias, scheme);
  };
  at::Tensor result;
  try {
    result = run_on(sizes);
  } catch (const c10::Error&) {
    result = run_on(input.sizes());
  }
  Dims of_result(result.sizes());
  of_result[0] = input.size(0);
  return of_result;
}

at::Tensor compute_shape(const at::Tensor& input, const at::Tensor& weight, const MaybeTensor& bias,
                         c10::IntArrayRef stride, c10::IntArrayRef padding, c10::IntArrayRef dilation, bool transposed,
                         c10::IntArrayRef output_padding, int64_t groups) {
  const ConvolutionScheme scheme{stride, padding, dilation, transposed, output_padding, groups};
  return at::empty(sizes_of_dense(input, weight, bias, scheme), input.options(), format_of_results(input, weight));
}

bool has_sharded_image(const at::Tensor& input) {
  if (!is_dtensor(input)) return false;
  return std::ranges::any_of(spec_of(input)->placements(),
                             [](const Placement& placement) { return placement.split_dim() >= 2; });
}

Grads compute_backward(const at::Tensor& grad, const at::Tensor& input, const at::Tensor& weight,
                       c10::IntArrayRef stride, c10::IntArrayRef padding, c10::IntArrayRef dilation, bool transposed,
                       c10::IntArrayRef output_padding, int64_t groups, std::array<bool, 2> mask) {
  return convolve_piece_backward(grad, input, weight, {stride, padding, dilation, transposed, output_padding, groups},
                                 mask);
}

Grads compute_backward_shape(const at::Tensor&, const at::Tensor& input, const at::Tensor& weight, c10::IntArrayRef,
                             c10::IntArrayRef, c10::IntArrayRef, bool, c10::IntArrayRef, int64_t,
                             std::array<bool, 2> mask) {
  const c10::MemoryFormat format = format_of_results(input, weight);
  return {mask[0] ? at::empty(input.sizes(), input.options(), format) : at::Tensor(),
          mask[1] ? at::empty(weight.sizes(), weight.options(), format) : at::Tensor()};
}

at::Tensor convolve(const at::Tensor& input, const at::Tensor& weight, const MaybeTensor& bias, c10::IntArrayRef stride,
                    c10::IntArrayRef padding, c10::IntArrayRef dilation, bool transposed,
                    c10::IntArrayRef output_padding, int64_t groups) {
  static const auto op = operator_of<decltype(compute)>("shardwise::convolution");
  check_weight(input, weight, transposed, groups);
  if (has_sharded_image(input)) {
    const ConvolutionScheme scheme{stride, padding, dilation, transposed, output_padding, groups};
    sizes_of_dense(input, weight, bias, scheme);  // for its errors
    if (auto result = convolve_sharded_image(input, weight, bias, scheme)) return *result;
  }
  return op.call(input, weight, bias, stride, padding, dilation, transposed, output_padding, groups);
}

at::Tensor convolve_with_flags(const at::Tensor& input, const at::Tensor& weight, const MaybeTensor& bias,
                               c10::IntArrayRef stride, c10::IntArrayRef padding, c10::IntArrayRef dilation,
                               bool transposed, c10::IntArrayRef output_padding, int64_t groups, bool /*benchmark*/,
                               bool /*deterministic*/, bool /*cudnn_enabled*/, bool /*allow_tf32*/) {
  return convolve(input, weight, bias, stride, padding, dilation, transposed, output_padding, groups);
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> convolution_backward(
    const at::Tensor& grad, const at::Tensor& input, const at::Tensor& weight, at::OptionalIntArrayRef /*bias_sizes*/,
    c10::IntArrayRef stride, c10::IntArrayRef padding, c10::IntArrayRef dilation, bool transposed,
    c10::IntArrayRef output_padding, int64_t groups, std::array<bool, 3> mask) {
  static const auto op = operator_of<decltype(compute_backward)>("shardwise::convolution_backward");
  at::Tensor of_input, of_weight, of_bias;
  const bool is_wanted = mask[0] || mask[1];
  std::optional<Grads> of_image;
  if (is_wanted && has_sharded_image(input))
    of_image = convolve_sharded_image_backward(
        grad, input, weight, {stride, padding, dilation, transposed, output_padding, groups}, {mask[0], mask[1]});
  if (of_image)
    std::tie(of_input, of_weight) = *of_image;
  else if (is_wanted)
    std::tie(of_input, of_weight) =
        op.call(grad, input, weight, stride, padding, dilation, transposed, output_padding, groups, {mask[0], mask[1]});
  if (mask[2]) {
    Dims dims;
    for (int64_t dim = 0; dim < grad.dim(); ++dim)
      if (dim != 1) dims.push_back(dim);
    of_bias = grad.sum(dims);
  }
  return {std::move(of_input), std::move(of_weight), std::move(of_bias)};
}

}  // namespace

Dims ConvolutionScheme::sizes_of_result(c10::IntArrayRef input, c10::IntArrayRef weight) const {
  Dims sizes{input[0], is_transposed ? weight[1] * groups : weight[0]};
  for (int64_t dim = 2; dim < static_cast<int64_t>(input.size()); ++dim) {
    const int64_t reach = entry(dilation, dim - 2) * (weight[dim] - 1), around = 2 * entry(padding, dim - 2);
    const int64_t step = entry(stride, dim - 2);
    sizes.push_back(is_transposed ? (input[dim] - 1) * step - around + reach + entry(output_padding, dim - 2) + 1
                                  : (input[dim] + around - reach - 1) / step + 1);
  }
  return sizes;
}

c10::MemoryFormat format_of_results(const at::Tensor& input, const at::Tensor& weight) {
  for (const at::Tensor* tensor : {&input, &weight}) {
    const c10::MemoryFormat format = tensor->suggest_memory_format();
    const bool is_slow = format == c10::MemoryFormat::ChannelsLast3d && input.scalar_type() == at::kDouble;
    if (format != c10::MemoryFormat::Contiguous && !is_slow) return format;
  }
  return c10::MemoryFormat::Contiguous;
}

at::Tensor convolve_piece(const at::Tensor& input, const at::Tensor& weight, const MaybeTensor& bias,
                          const ConvolutionScheme& scheme) {
  if (input.numel() > 0 && weight.numel() > 0) return dense(input, weight, bias, scheme);
  const at::Tensor zeros = at::zeros(scheme.sizes_of_result(input.sizes(), weight.sizes()), input.options());
  if (!bias || !bias->defined()) return zeros;
  Dims per_channel(input.dim() - 1, 1);
  per_channel[0] = bias->numel();
  return zeros + bias->view(per_channel);
}

std::tuple<at::Tensor, at::Tensor> convolve_piece_backward(const at::Tensor& grad, const at::Tensor& input,
                                                           const at::Tensor& weight, const ConvolutionScheme& scheme,
                                                           std::array<bool, 2> mask) {
  if (grad.numel() == 0 || input.numel() == 0 || weight.numel() == 0)
    return {mask[0] ? at::zeros_like(input) : at::Tensor(), mask[1] ? at::zeros_like(weight) : at::Tensor()};
  auto [of_input, of_weight, of_bias] =
      at::convolution_backward(grad, input, weight, std::nullopt, scheme.stride, scheme.padding, scheme.dilation,
                               scheme.is_transposed, scheme.output_padding, scheme.groups, {mask[0], mask[1], false});
  return {std::move(of_input), std::move(of_weight)};
}

void register_convolution(RuleTable& table) {
  define_operator(
      "convolution(Tensor input, Tensor weight, Tensor? bias, int[] stride, int[] padding, int[] dilation, "
      "bool transposed, int[] output_padding, int groups) -> Tensor",
      {&compute, &compute_shape});
  define_operator(
      "convolution_backward(Tensor grad, Tensor input, Tensor weight, int[] stride, int[] padding, int[] dilation, "
      "bool transposed, int[] output_padding, int groups, bool[2] mask) -> (Tensor, Tensor)",
      {&compute_backward, &compute_backward_shape});
  table.add("shardwise::convolution",
            Rule("ni…,oi…,o->no… {i: sum}", describe_convolution).multilinear().localized(localize_groups));
  table.add("shardwise::convolution_backward",
            Rule("no…,ni…,oi…->ni…,oi…", describe_convolution_backward).linear_in_first().localized(localize_groups));
  aten_kernels().impl("convolution", &convolve);
  aten_kernels().impl("_convolution", &convolve_with_flags);
  aten_kernels().impl("convolution_backward", &convolution_backward);
}

}  // namespace shardwise
