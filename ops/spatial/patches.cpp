// ops/spatial/patches.cpp: pixel and channel shuffles, and sliding windows (im2col, unfold) and their reverse.
#include "ops/families.h"
#include "ops/support/common_rules.h"
#include "ops/support/kernels.h"
#include "ops/support/own_operator.h"

#include <ATen/Functions.h>
#include <c10/core/WrapDimMinimal.h>

namespace shardwise {
namespace {

/// A dim of `size` elements, sharded in steps of `scale`. Whole if `scale` does not divide `size`, which the operator reports as an error.
Axis scaled_axis(int64_t size, int64_t scale, Signature& signature) {
  const bool fits = scale > 0 && size % scale == 0;
  const Axis axis{signature.add_factor(fits ? size / scale : size), fits ? scale : 1};
  if (!fits) signature.factors.back().is_whole = true;
  return axis;
}

/// "…(crr)hw->…c(hr)(wr)", or the reverse.
void describe_shuffle(int64_t r, bool is_reverse, const OpCall& call, Signature& signature) {
  const c10::IntArrayRef sizes = call.operands[0].sizes;
  Axes input, output;
  for (size_t dim = 0; dim < sizes.size(); ++dim) {
    const bool is_plane = dim + 2 >= sizes.size(), is_channel = dim + 3 == sizes.size();
    const int64_t to_image = is_plane ? r : 1, to_channels = is_channel ? r * r : 1;
    input.push_back(scaled_axis(sizes[dim], is_reverse ? to_image : to_channels, signature));
    output.push_back({input.back().factor, is_reverse ? to_channels : to_image});
  }
  signature.set({input}, {output});
  keep_whole_if_empty(call, signature);
}

void describe_pixel_shuffle(const OpCall& call, Signature& signature) {
  describe_shuffle(call.arg("upscale_factor").toInt(), /*is_reverse=*/false, call, signature);
}

void describe_pixel_unshuffle(const OpCall& call, Signature& signature) {
  describe_shuffle(call.arg("downscale_factor").toInt(), /*is_reverse=*/true, call, signature);
}

/// Channels are whole; the other dims may be sharded.
void describe_channel_shuffle(const OpCall& call, Signature& signature) {
  const c10::IntArrayRef sizes = call.operands[0].sizes;
  Axes axes;
  for (size_t dim = 0; dim < sizes.size(); ++dim) {
    axes.push_back({signature.add_factor(sizes[dim], dim == 1)});
  }
  signature.set({axes}, {axes});
  keep_whole_if_empty(call, signature);
}

int64_t window_size(const OpCall& call) { return c10::multiply_integers(call.arg("kernel_size").toIntVector()); }

/// "…chw->…(ck)l": windows of k elements.
void describe_im2col(const OpCall& call, Signature& signature) {
  const c10::IntArrayRef sizes = call.operands[0].sizes;
  Axes input, output;
  const size_t n_shared = sizes.size() < 2 ? 0 : sizes.size() - 2;
  for (size_t dim = 0; dim < n_shared; ++dim) {
    input.push_back({signature.add_factor(sizes[dim])});
    output.push_back({input.back().factor, dim + 1 == n_shared ? window_size(call) : 1});
  }
  add_whole_axes(sizes, sizes.size() - n_shared, signature, input);
  output.push_back({});
  signature.set({input}, {output});
  keep_whole_if_empty(call, signature);
}

/// "…(ck)l->…chw".
void describe_col2im(const OpCall& call, Signature& signature) {
  const c10::IntArrayRef sizes = call.operands[0].sizes;
  Axes input, output;
  for (size_t dim = 0; dim + 1 < sizes.size(); ++dim) {
    input.push_back(scaled_axis(sizes[dim], dim + 2 == sizes.size() ? window_size(call) : 1, signature));
    output.push_back({input.back().factor});
  }
  add_whole_axes(sizes, std::min<size_t>(sizes.size(), 1), signature, input);
  output.resize(output.size() + 2);
  signature.set({input}, {output});
  keep_whole_if_empty(call, signature);
}

/// The unfolded dim is whole; the new last dim has the windows' elements.
void describe_unfold(const OpCall& call, Signature& signature) {
  const c10::IntArrayRef sizes = call.operands[0].sizes;
  const Axes input = signature.add_factors(sizes);
  Axes output = input;
  if (!sizes.empty()) {
    const int64_t dim = c10::maybe_wrap_dim(call.arg("dimension").toInt(), static_cast<int64_t>(sizes.size()));
    signature.factors[input[dim].factor].is_whole = true;
    output[dim] = {};
  }
  output.push_back({});
  signature.set({input}, {output});
}

void describe_unfold_backward(const OpCall& call, Signature& signature) {
  const c10::IntArrayRef sizes = call.operands[0].sizes;
  const size_t n_dims = sizes.size() - 1;
  const Axes input = signature.add_factors(sizes);
  Axes output(input.begin(), input.begin() + static_cast<std::ptrdiff_t>(n_dims));
  signature.factors.back().is_whole = true;
  if (n_dims > 0) {
    const int64_t dim = c10::maybe_wrap_dim(call.arg("dim").toInt(), static_cast<int64_t>(n_dims));
    signature.factors[input[dim].factor].is_whole = true;
    output[dim] = {};
  }
  signature.set({input}, {output});
}

// torch's unfold_backward has no meta kernel outside Python, so an operator of our own gives the shapes.

at::Tensor compute_unfold_backward(const at::Tensor& grad, c10::IntArrayRef input_sizes, int64_t dim, int64_t size,
                                   int64_t step) {
  return at::unfold_backward(grad, input_sizes, dim, size, step);
}

at::Tensor shape_of_unfold_backward(const at::Tensor& grad, c10::IntArrayRef input_sizes, int64_t, int64_t, int64_t) {
  return at::empty(input_sizes, grad.options());
}

at::Tensor unfold_backward(const at::Tensor& grad, c10::IntArrayRef input_sizes, int64_t dim, int64_t size,
                           int64_t step) {
  static const auto op = operator_of<decltype(compute_unfold_backward)>("shardwise::unfold_backward");
  return op.call(grad, input_sizes, dim, size, step);
}

}  // namespace

void register_patches(RuleTable& table) {
  define_operator("unfold_backward(Tensor grad, int[] input_sizes, int dim, int size, int step) -> Tensor",
                  {&compute_unfold_backward, &shape_of_unfold_backward});
  const auto passing = [](const char* text, Rule::Describe describe) {
    return Rule(text, std::move(describe)).linear(Linearity::kPass);
  };
  table.add("aten::pixel_shuffle", passing("…(crr)hw->…c(hr)(wr)", describe_pixel_shuffle).sampled());
  table.add("aten::pixel_unshuffle", passing("…c(hr)(wr)->…(crr)hw", describe_pixel_unshuffle).sampled());
  table.add("aten::channel_shuffle", passing("channel_shuffle", describe_channel_shuffle).sampled());
  table.add("aten::im2col", Rule("…chw->…(ck)l", describe_im2col).linear().sampled());
  table.add("aten::col2im", Rule("…(ck)l->…chw", describe_col2im).linear().sampled());
  table.add("aten::unfold", passing("unfold", describe_unfold));
  table.add("shardwise::unfold_backward",
            Rule("unfold_backward", describe_unfold_backward).linear().sizes_in("input_sizes"));
  aten_kernels().impl("unfold_backward", &unfold_backward);
}

}  // namespace shardwise
