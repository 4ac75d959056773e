#include "ops/spatial/halo.h"

#include "runtime/comm/messages.h"

#include <ATen/Functions.h>

#include <algorithm>

namespace shardwise {
namespace {

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

}  // namespace

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

}  // namespace shardwise
