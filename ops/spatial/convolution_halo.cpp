// ops/spatial/convolution_halo.cpp: convolutions whose spatial dims stay sharded, with an exchange of halos.
#include "ops/spatial/convolution.h"
#include "runtime/api/dtensor.h"
#include "runtime/comm/comm_scope.h"
#include "runtime/comm/messages.h"
#include "runtime/tensor/below_autograd.h"
#include "runtime/tensor/device_mesh.h"

#include <ATen/Functions.h>
#include <ATen/core/Tensor.h>

#include <algorithm>
#include <ranges>
#include <vector>

namespace shardwise {
namespace {

/// The interval of tensor dim `dim` that each rank along `mesh_dim` holds, and the window that it computes on; windows
/// may overlap. One interval per coordinate, ascending; every index is held once.
///
/// 8 rows on 2 ranks, windows of one more row:  held [0,4) [4,8), windows [0,5) [3,8): each rank sends one row.
struct Halo {
  MeshPtr mesh;
  int64_t mesh_dim = 0;
  int64_t dim = 0;
  std::vector<Interval> held, windows;

  /// This rank's window. `piece` is the held interval; the rest of the window is received. Collective along the mesh dim.
  at::Tensor fetch(const at::Tensor& piece) const;
  /// The gradient of fetch(): the sum of all ranks' windows; each index goes to the rank that holds it. Collective as fetch().
  at::Tensor add_to_owners(const at::Tensor& window) const;

  const Interval& own_window() const { return windows[(*mesh->coord())[mesh_dim]]; }
};

Interval common(const Interval& a, const Interval& b) {
  const int64_t begin = std::max(a.begin, b.begin);
  return {begin, std::max(begin, std::min(a.end, b.end))};
}

int64_t rank_along(const Halo& halo, int64_t coord) {
  Dims place = *halo.mesh->coord();
  place[halo.mesh_dim] = coord;
  return halo.mesh->grid().rank_at(place);
}

/// Sends the intersection of `from`, the interval of `tensor`, with `to[i]` to rank i along the mesh dim, and receives from rank i the intersection
/// of `of` with `sources[i]`. Returns the received tensors by rank, undefined where nothing was received.
std::vector<at::Tensor> send_parts(const Halo& halo, const at::Tensor& tensor, const Interval& from,
                                   const std::vector<Interval>& to, const Interval& of,
                                   const std::vector<Interval>& sources) {
  std::vector<at::Tensor> arrived(to.size());
  const int64_t own = (*halo.mesh->coord())[halo.mesh_dim];
  std::vector<Message> sends, receives;
  for (int64_t coord = 0; coord < static_cast<int64_t>(to.size()); ++coord) {
    if (coord == own) continue;
    const Interval leaves = common(from, to[coord]), comes = common(of, sources[coord]);
    if (leaves.length() > 0) {
      const at::Tensor part = tensor.narrow(halo.dim, leaves.begin - from.begin, leaves.length());
      if (part.numel() > 0) sends.push_back({rank_along(halo, coord), part.contiguous()});
    }
    if (comes.length() > 0) {
      Dims sizes(tensor.sizes());
      sizes[halo.dim] = comes.length();
      arrived[coord] = at::empty(sizes, tensor.options());
      if (arrived[coord].numel() > 0) receives.push_back({rank_along(halo, coord), arrived[coord]});
    }
  }
  if (to.size() > 1)
    exchange(*halo.mesh->group(halo.mesh_dim), tensor.device(), std::move(sends), std::move(receives))->wait();
  return arrived;
}

at::Tensor Halo::fetch(const at::Tensor& piece) const {
  const int64_t own = (*mesh->coord())[mesh_dim];
  std::vector<at::Tensor> parts = send_parts(*this, piece, held[own], windows, windows[own], held);
  const Interval kept = common(held[own], windows[own]);
  parts[own] = piece.narrow(dim, kept.length() > 0 ? kept.begin - held[own].begin : 0, kept.length());
  std::erase_if(parts, [](const at::Tensor& part) { return !part.defined(); });
  return parts.size() == 1 ? parts[0] : at::cat(parts, dim);
}

at::Tensor Halo::add_to_owners(const at::Tensor& window) const {
  const int64_t own = (*mesh->coord())[mesh_dim];
  std::vector<at::Tensor> parts = send_parts(*this, window, windows[own], held, held[own], windows);
  const Interval kept = common(held[own], windows[own]);
  parts[own] = window.narrow(dim, kept.length() > 0 ? kept.begin - windows[own].begin : 0, kept.length());
  Dims sizes(window.sizes());
  sizes[dim] = held[own].length();
  const at::Tensor sum = at::zeros(sizes, window.options());
  for (size_t coord = 0; coord < parts.size(); ++coord) {
    const Interval part = common(held[own], windows[coord]);
    if (parts[coord].defined() && part.length() > 0)
      sum.narrow(dim, part.begin - held[own].begin, part.length()).add_(parts[coord]);
  }
  return sum;
}

/// One sharded spatial dim. The rank with the first input row of a window (padding aside) computes its result.
struct ShardedDim {
  Halo halo;
  std::vector<Interval> results;
  std::vector<std::array<int64_t, 2>> pads;  // zeros before and after each window
};

class ShardedImage {
 public:
  /// nullopt if the layouts or the scheme are not supported.
  static std::optional<ShardedImage> of(const at::Tensor& input, const at::Tensor& weight,
                                        const ConvolutionScheme& scheme) {
    if (!is_dtensor(input) || !is_dtensor(weight) || spec_of(input)->mesh() != spec_of(weight)->mesh()) return {};
    if (scheme.is_transposed || input.numel() == 0 || weight.numel() == 0) return {};
    ShardedImage image(input, weight, scheme);
    if (!image.is_possible_ || image.dims_.empty()) return {};
    return image;
  }

  const SpecPtr& input() const { return input_; }
  const SpecPtr& result() const { return result_; }
  const Placements& weight_placements() const { return of_weight_; }
  const Placements& bias_placements() const { return of_bias_; }

  /// The input window of this rank's part of the result, padded with zeros.
  at::Tensor window(at::Tensor piece) const {
    for (const ShardedDim& dim : dims_) piece = dim.halo.fetch(piece);
    std::vector<int64_t> pads(2 * (piece.dim() - 2), 0);  // the last dim's first
    for (const ShardedDim& dim : dims_) std::ranges::copy(dim.pads[coord(dim)], pads.end() - 2 * (dim.halo.dim - 1));
    const bool is_inside = std::ranges::all_of(pads, [](int64_t n) { return n == 0; });
    return is_inside ? piece : at::constant_pad_nd(piece, pads);
  }

  /// The gradient of window(): adds the values of all windows at the ranks that own them.
  at::Tensor add_to_owners(at::Tensor window) const {
    for (const ShardedDim& dim : dims_)
      window = window.narrow(dim.halo.dim, dim.pads[coord(dim)][0], dim.halo.own_window().length());
    for (const ShardedDim& dim : std::views::reverse(dims_)) window = dim.halo.add_to_owners(window);
    return window;
  }

  /// The scheme for window(), which already contains the padding of sharded dims.
  ConvolutionScheme local_scheme() const {
    ConvolutionScheme scheme = scheme_;
    scheme.padding = padding_;
    return scheme;
  }

  /// The weight gradient's spec: Partial where the input is sharded, sharded by output channels where the weight is.
  SpecPtr weight_grad(const at::Tensor& weight) const {
    Placements placements = of_weight_;
    for (size_t m = 0; m < placements.size(); ++m)
      if (input_->placements()[m].divides()) placements[m] = Placement::partial();
    return Spec::intern(input_->mesh(), weight.sizes(), std::move(placements), strides_of(weight.sizes()),
                        weight.scalar_type());
  }

  /// The input gradient's spec: Partial where output channels are sharded.
  SpecPtr input_grad() const {
    Placements placements = input_->placements().vec();
    for (size_t m = 0; m < placements.size(); ++m)
      if (of_weight_[m].divides()) placements[m] = Placement::partial();
    return Spec::intern(input_->mesh(), input_->sizes(), std::move(placements), strides_of(input_->sizes()),
                        input_->dtype());
  }

  /// The memory format of the result and of both gradients, equal on every rank.
  c10::MemoryFormat format() const { return format_; }

 private:
  ShardedImage(const at::Tensor& input, const at::Tensor& weight, const ConvolutionScheme& scheme)
      : input_(spec_of(input)), scheme_(scheme), format_(format_of_results(input, weight)) {
    const Dims sizes = scheme.sizes_of_result(input.sizes(), weight.sizes());
    for (int64_t dim = 2; dim < input.dim(); ++dim)
      padding_.push_back(ConvolutionScheme::entry(scheme.padding, dim - 2));
    is_possible_ = input_->layout().has_one_box_each();
    Placements of_result;
    for (size_t m = 0; m < input_->placements().size() && is_possible_; ++m) {
      const Placement &placement = input_->placements()[m], &of_weight = spec_of(weight)->placements()[m];
      const bool is_by_output = placement.is_whole() && of_weight.split_dim() == 0 && scheme.groups == 1;
      of_weight_.push_back(is_by_output ? of_weight : Placement::replicate());
      of_bias_.push_back(of_weight_.back());
      of_result.push_back(is_by_output ? of_weight.with_dim(1) : placement);
      const int64_t dim = placement.split_dim();
      is_possible_ = placement.is_whole() || dim == 0 || dim >= 2;
      if (dim >= 2) of_result.back() = shard_result(static_cast<int64_t>(m), weight.size(dim), sizes);
    }
    if (is_possible_)
      result_ = Spec::intern(input_->mesh(), sizes, std::move(of_result), strides_of(sizes), input_->dtype());
  }

  Dims strides_of(c10::IntArrayRef sizes) const {
    switch (format_) {
      case c10::MemoryFormat::ChannelsLast:
        return Dims(c10::get_channels_last_strides_2d(sizes));
      case c10::MemoryFormat::ChannelsLast3d:
        return Dims(c10::get_channels_last_strides_3d(sizes));
      default:
        return row_major_strides(sizes);
    }
  }

  /// The result's placement on a mesh dim that shards the input.
  Placement shard_result(int64_t mesh_dim, int64_t extent, const Dims& result_sizes) {
    const int64_t dim = input_->placements()[mesh_dim].dim();
    const int64_t length = input_->sizes()[dim], n_results = result_sizes[dim];
    const int64_t stride = ConvolutionScheme::entry(scheme_.stride, dim - 2), padding = padding_[dim - 2];
    const int64_t reach = ConvolutionScheme::entry(scheme_.dilation, dim - 2) * (extent - 1) + 1;
    is_possible_ = std::ranges::none_of(dims_, [&](const ShardedDim& other) { return other.halo.dim == dim; });
    if (!is_possible_) return {};

    const auto edge = [=](int64_t row) {
      return row == 0 ? 0 : row == length ? n_results : std::min((row + stride - 1) / stride, n_results);
    };
    ShardedDim sharded{.halo = {input_->mesh(), mesh_dim, dim, input_->layout().shard_intervals(dim), {}}};
    for (const Interval& held : sharded.halo.held) {
      const Interval made{edge(held.begin), edge(held.end)};
      const bool is_empty = held.length() == 0 || made.length() == 0;
      const int64_t begin = is_empty ? 0 : made.begin * stride - padding;
      const int64_t end = is_empty ? 0 : (made.end - 1) * stride - padding + reach;
      const Interval window{std::clamp<int64_t>(begin, 0, length), std::clamp<int64_t>(end, 0, length)};
      sharded.results.push_back(made);
      sharded.halo.windows.push_back(window);
      sharded.pads.push_back({std::max<int64_t>(0, std::min<int64_t>(end, 0) - begin),
                              std::max<int64_t>(0, end - std::max(begin, length))});
    }
    dims_.push_back(std::move(sharded));
    padding_[dim - 2] = 0;
    return input_->layout().resized(dim, edge)[mesh_dim];
  }

  static int64_t coord(const ShardedDim& dim) { return (*dim.halo.mesh->coord())[dim.halo.mesh_dim]; }

  SpecPtr input_, result_;
  ConvolutionScheme scheme_;
  c10::MemoryFormat format_;
  Placements of_weight_, of_bias_;
  Dims padding_;
  std::vector<ShardedDim> dims_;
  bool is_possible_ = true;
};

const Shards& pieces_of(const at::Tensor& tensor) { return maybe_dtensor(tensor)->shards(); }

}  // namespace

std::optional<at::Tensor> convolve_sharded_image(const at::Tensor& input, const at::Tensor& weight,
                                                 const std::optional<at::Tensor>& bias,
                                                 const ConvolutionScheme& scheme) {
  const auto image = ShardedImage::of(input, weight, scheme);
  const bool has_bias = bias && bias->defined();
  if (!image || (has_bias && !is_dtensor(*bias))) return std::nullopt;
  const CommScope scope("aten::convolution");
  const at::Tensor weights = redistribute(weight, image->weight_placements());
  std::optional<at::Tensor> biases;
  if (has_bias) biases = redistribute(*bias, image->bias_placements());
  Shards pieces;
  if (image->result()->is_member()) {
    const BelowAutograd guard;
    const at::Tensor window = image->window(pieces_of(input)[0]);
    const Box& box = image->result()->boxes()[0];
    if (has_bias) biases = pieces_of(*biases)[0];
    const at::Tensor found = box.empty() ? at::zeros(box.sizes, window.options())
                                         : convolve_piece(window, pieces_of(weights)[0], biases, image->local_scheme());
    pieces.push_back(found.contiguous(image->format()));
  }
  return wrap(image->result(), std::move(pieces));
}

std::optional<std::tuple<at::Tensor, at::Tensor>> convolve_sharded_image_backward(const at::Tensor& grad,
                                                                                  const at::Tensor& input,
                                                                                  const at::Tensor& weight,
                                                                                  const ConvolutionScheme& scheme,
                                                                                  std::array<bool, 2> mask) {
  const auto image = ShardedImage::of(input, weight, scheme);
  if (!image || !is_dtensor(grad)) return std::nullopt;
  const CommScope scope("aten::convolution_backward");
  const at::Tensor grads = redistribute(grad, image->result()->placements().vec());
  const at::Tensor weights = redistribute(weight, image->weight_placements());
  Shards of_input, of_weight;
  if (image->result()->is_member()) {
    const BelowAutograd guard;
    const at::Tensor window = image->window(pieces_of(input)[0]), &rows = pieces_of(weights)[0];
    at::Tensor of_window, of_rows;
    if (image->result()->boxes()[0].empty())
      std::tie(of_window, of_rows) = std::tuple(at::zeros_like(window), at::zeros_like(rows));
    else
      std::tie(of_window, of_rows) =
          convolve_piece_backward(pieces_of(grads)[0], window, rows, image->local_scheme(), mask);
    if (mask[0]) of_input.push_back(image->add_to_owners(of_window).contiguous(image->format()));
    if (mask[1]) of_weight.push_back(of_rows.contiguous(image->format()));
  }
  return std::tuple(mask[0] ? wrap(image->input_grad(), std::move(of_input)) : at::Tensor(),
                    mask[1] ? wrap(image->weight_grad(weight), std::move(of_weight)) : at::Tensor());
}

}  // namespace shardwise
