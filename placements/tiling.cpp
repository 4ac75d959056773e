#include "placements/tiling.h"

#include <algorithm>
#include <set>

namespace shardwise {
namespace {

int64_t dim_with_most_begins(c10::ArrayRef<Box> boxes) {
  const int64_t n_dims = static_cast<int64_t>(boxes.front().sizes.size());
  int64_t best = 0;
  size_t most = 0;
  for (int64_t dim = 0; dim < n_dims; ++dim) {
    std::set<int64_t> begins;
    for (const Box& box : boxes) begins.insert(box.offsets[dim]);
    if (begins.size() > most) {
      best = dim;
      most = begins.size();
    }
  }
  return best;
}

/// The dim with the most edges of `parts` strictly inside `whole`, and the median of those edges. Nothing if no edge is inside.
std::optional<std::pair<int64_t, int64_t>> middle_edge(const Box& whole, const std::vector<Box>& parts) {
  int64_t best = -1;
  std::vector<int64_t> most;
  for (int64_t dim = 0; dim < static_cast<int64_t>(whole.sizes.size()); ++dim) {
    const Interval all = whole.interval(dim);
    std::vector<int64_t> edges;
    for (const Box& part : parts)
      for (const int64_t edge : {part.interval(dim).begin, part.interval(dim).end})
        if (all.begin < edge && edge < all.end) edges.push_back(edge);
    if (edges.size() <= most.size()) continue;
    best = dim;
    most = std::move(edges);
  }
  if (best < 0) return std::nullopt;
  const auto middle = most.begin() + static_cast<std::ptrdiff_t>(most.size() / 2);
  std::nth_element(most.begin(), middle, most.end());
  return std::pair{best, *middle};
}

}  // namespace

std::optional<std::pair<size_t, size_t>> find_overlap(c10::ArrayRef<Box> boxes) {
  std::vector<size_t> order;
  for (size_t i = 0; i < boxes.size(); ++i) {
    if (!boxes[i].empty()) order.push_back(i);
  }
  if (order.size() < 2) return std::nullopt;
  if (boxes.front().sizes.empty()) return std::pair{order[0], order[1]};  // 0-dim boxes: each is the only element

  const int64_t dim = dim_with_most_begins(boxes);
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return boxes[a].offsets[dim] < boxes[b].offsets[dim]; });
  std::vector<size_t> open;  // boxes that the sweep along `dim` is inside
  for (const size_t next : order) {
    const int64_t position = boxes[next].offsets[dim];
    std::erase_if(open, [&](size_t i) { return boxes[i].interval(dim).end <= position; });
    for (const size_t i : open) {
      if (!intersect(boxes[i], boxes[next]).empty()) return std::minmax(i, next);
    }
    open.push_back(next);
  }
  return std::nullopt;
}

std::optional<Box> find_hole(const Box& whole, c10::ArrayRef<Box> boxes) {
  std::vector<Box> parts;  // the parts of `boxes` inside `whole`
  int64_t covered = 0;
  for (const Box& box : boxes) {
    Box part = intersect(whole, box);
    if (part.empty()) continue;
    covered += part.numel();
    parts.push_back(std::move(part));
  }
  if (covered == whole.numel()) return std::nullopt;
  if (parts.empty()) return whole;
  const auto cut = middle_edge(whole, parts);
  if (!cut) return std::nullopt;  // the boxes overlap: the precondition does not hold
  const auto [dim, at] = *cut;
  const Interval all = whole.interval(dim);
  Box half = whole;
  half.set_interval(dim, {all.begin, at});
  if (auto hole = find_hole(half, parts)) return hole;
  half.set_interval(dim, {at, all.end});
  return find_hole(half, parts);
}

}  // namespace shardwise
