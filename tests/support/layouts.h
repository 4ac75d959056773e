// tests/support/layouts.h: the layout cases that every test of tensors goes through.
#pragma once

#include "runtime/api/dtensor.h"
#include "runtime/tensor/device_mesh.h"

#include <optional>
#include <random>
#include <string>
#include <vector>

namespace shardwise {

inline MeshPtr make_mesh(Dims shape, std::vector<int64_t> ranks = {}) {
  int64_t size = 1;
  for (int64_t extent : shape) size *= extent;
  for (int64_t rank = 0; static_cast<int64_t>(ranks.size()) < size; ++rank) ranks.push_back(rank);
  return DeviceMesh::create(World::current(), c10::kCPU, {std::move(shape), std::move(ranks)});
}

/// A random way to split `length` in `n_parts`, empty parts included.
inline std::vector<int64_t> random_sizes(int64_t length, int64_t n_parts, std::mt19937& random) {
  std::vector<int64_t> ends{0, length};
  for (int64_t i = 1; i < n_parts; ++i) ends.push_back(static_cast<int64_t>(random() % (length + 1)));
  std::ranges::sort(ends);
  std::vector<int64_t> sizes;
  for (size_t i = 1; i < ends.size(); ++i) sizes.push_back(ends[i] - ends[i - 1]);
  return sizes;
}

/// A random grid of boxes over a tensor, dealt to random ranks.
inline Placement random_pieces(c10::IntArrayRef sizes, const RankGrid& grid, std::mt19937& random) {
  std::vector<Box> boxes{Box::whole(sizes)};
  for (size_t dim = 0; dim < sizes.size(); ++dim) {
    std::vector<Box> parts;
    for (const Box& box : boxes) {
      const int64_t at = box.offsets[dim] + static_cast<int64_t>(random() % (box.sizes[dim] + 1));
      for (Interval part : {Interval{box.offsets[dim], at}, Interval{at, box.offsets[dim] + box.sizes[dim]}}) {
        parts.push_back(box);
        parts.back().set_interval(static_cast<int64_t>(dim), part);
      }
    }
    boxes = std::move(parts);
  }
  std::vector<ShardMetadata> pieces;
  for (const Box& box : boxes)
    if (!box.empty()) pieces.push_back({box.offsets, box.sizes, grid.ranks[random() % grid.ranks.size()]});
  return Placement::enumerable(std::move(pieces));
}

/// Placements of any kind for a tensor of `sizes`; equal seeds give equal placements on all ranks.
inline Placements random_placements(c10::IntArrayRef sizes, const RankGrid& grid, std::mt19937& random,
                                    bool with_partial = true) {
  if (grid.shape.size() == 1 && !sizes.empty() && random() % 5 == 0) return {random_pieces(sizes, grid, random)};
  Placements placements;
  std::vector<bool> is_sharded(sizes.size());
  std::optional<size_t> strided;  // no later Shard may cut it, and there is at most one
  for (int64_t n_parts : grid.shape) {
    const auto dim = sizes.empty() ? 0 : random() % sizes.size();
    switch (random() % (sizes.empty() || dim == strided ? 2 : 6)) {
      case 0:
        placements.push_back(Placement::replicate());
        break;
      case 1:
        placements.push_back(with_partial ? Placement::partial(random() % 3 == 0 ? Reduce::kMax : Reduce::kSum)
                                          : Placement::replicate());
        break;
      case 2:
        placements.push_back(Placement::shard(static_cast<int64_t>(dim)));
        is_sharded[dim] = true;
        break;
      case 3:
        if (!strided && random() % 2 == 0) {
          strided = dim;
          placements.push_back(
              Placement::strided_shard(static_cast<int64_t>(dim), 2 + static_cast<int64_t>(random() % 3)));
          break;
        }
        placements.push_back(Placement::block_shard(static_cast<int64_t>(dim), 1 + static_cast<int64_t>(random() % 4)));
        is_sharded[dim] = true;
        break;
      default:
        // Explicit sizes outermost only: inner ones depend on the outer piece.
        placements.push_back(
            is_sharded[dim] ? Placement::shard(static_cast<int64_t>(dim))
                            : Placement::shard(static_cast<int64_t>(dim), random_sizes(sizes[dim], n_parts, random)));
        is_sharded[dim] = true;
    }
  }
  return placements;
}

/// `dense`, which every rank has, laid out as `placements`, without messages.
inline at::Tensor lay_out(const at::Tensor& dense, const MeshPtr& mesh, Placements placements) {
  return distribute_tensor(dense, mesh, std::move(placements), std::nullopt);
}

}  // namespace shardwise
