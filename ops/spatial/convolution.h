// ops/spatial/convolution.h: convolutions of plain pieces, and of tensors whose spatial dims are cut.
#pragma once

#include "runtime/tensor/dtensor_impl.h"

#include <array>
#include <optional>
#include <tuple>

namespace shardwise {

/// The scalars of a convolution, in the order of the schemas.
struct ConvolutionScheme {
  c10::IntArrayRef stride, padding, dilation;
  bool is_transposed = false;
  c10::IntArrayRef output_padding;
  int64_t groups = 1;

  Dims sizes_of_result(c10::IntArrayRef input, c10::IntArrayRef weight) const;
  /// Entry `at` of a list of one per spatial dim, or of one for all.
  static int64_t entry(c10::IntArrayRef list, int64_t at) { return list.size() == 1 ? list[0] : list[at]; }
};

/// Of a piece, also without elements: then of zeros.
at::Tensor convolve_piece(const at::Tensor& input, const at::Tensor& weight, const std::optional<at::Tensor>& bias,
                          const ConvolutionScheme& scheme);
/// The gradients of input and weight, as far as `mask` wants them.
std::tuple<at::Tensor, at::Tensor> convolve_piece_backward(const at::Tensor& grad, const at::Tensor& input,
                                                           const at::Tensor& weight, const ConvolutionScheme& scheme,
                                                           std::array<bool, 2> mask);

/// The same of a distributed input with cut spatial dims: each rank works on its own part of the result and fetches the border of
/// input that it needs for that. The weight is replicated, or cut by output channels where the input is replicated.
///
/// Nothing where the layouts or the scheme are others: then spatial dims are gathered. Pre: the dense operator takes these sizes.
std::optional<at::Tensor> convolve_cut_image(const at::Tensor& input, const at::Tensor& weight,
                                             const std::optional<at::Tensor>& bias, const ConvolutionScheme& scheme);
std::optional<std::tuple<at::Tensor, at::Tensor>> convolve_cut_image_backward(const at::Tensor& grad,
                                                                              const at::Tensor& input,
                                                                              const at::Tensor& weight,
                                                                              const ConvolutionScheme& scheme,
                                                                              std::array<bool, 2> mask);

}  // namespace shardwise
