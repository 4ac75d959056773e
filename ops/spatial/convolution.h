// ops/spatial/convolution.h: convolutions of local shards, and of tensors whose spatial dims are sharded.
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
  /// Entry `at` of a list with one entry per spatial dim, or one for all.
  static int64_t entry(c10::IntArrayRef list, int64_t at) { return list.size() == 1 ? list[0] : list[at]; }
};

/// The memory format of results and gradients in torch's kernels: channels last if the input or the weight is channels last, except for volumes in
/// double precision.
c10::MemoryFormat format_of_results(const at::Tensor& input, const at::Tensor& weight);

/// Convolves plain tensors; an empty input or weight counts as zeros.
at::Tensor convolve_piece(const at::Tensor& input, const at::Tensor& weight, const std::optional<at::Tensor>& bias,
                          const ConvolutionScheme& scheme);
/// The gradients of input and weight that `mask` requests.
std::tuple<at::Tensor, at::Tensor> convolve_piece_backward(const at::Tensor& grad, const at::Tensor& input,
                                                           const at::Tensor& weight, const ConvolutionScheme& scheme,
                                                           std::array<bool, 2> mask);

/// Convolves a distributed input with sharded spatial dims: each rank computes its part of the result and fetches the border (halo) of the input that
/// it needs. The weight is replicated, or sharded by output channels.
///
/// Returns nullopt for other layouts and schemes; the caller then gathers the spatial dims. Pre: the dense operator accepts the sizes.
std::optional<at::Tensor> convolve_sharded_image(const at::Tensor& input, const at::Tensor& weight,
                                                 const std::optional<at::Tensor>& bias,
                                                 const ConvolutionScheme& scheme);
std::optional<std::tuple<at::Tensor, at::Tensor>> convolve_sharded_image_backward(const at::Tensor& grad,
                                                                                  const at::Tensor& input,
                                                                                  const at::Tensor& weight,
                                                                                  const ConvolutionScheme& scheme,
                                                                                  std::array<bool, 2> mask);

}  // namespace shardwise
