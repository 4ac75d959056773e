#include "plans/traffic_matrix.h"

#include "plans/traffic.h"
#include "plans/transfers.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace shardwise {
namespace {

/// The rank to which `rank`, at `coord`, sends in a ring of the ranks that an all-reduce combines.
int64_t next_in_ring(const Step& step, int64_t rank, Dims coord) {
  const RankGrid& grid = step.from.grid();
  if (step.mesh_dim < 0)
    return grid.ranks[(std::ranges::find(grid.ranks, rank) - grid.ranks.begin() + 1) % grid.size()];
  coord[step.mesh_dim] = (coord[step.mesh_dim] + 1) % grid.shape[step.mesh_dim];
  return grid.rank_at(coord);
}

/// Calls `use(receiver, box, bytes)` for each box that `rank` sends in `step`, unordered.
template <class Use>
void each_sent(const Step& step, int64_t element_bytes, int64_t rank, const Use& use) {
  const auto coord = step.from.grid().coord_of(rank);
  if (!coord || step.makes_terms()) return;
  if (step.kind == Step::Kind::kAllReduce) {
    const int64_t n = step.n_terms();
    const int64_t to = next_in_ring(step, rank, *coord);
    for (const Box& box : step.from.boxes(rank)) {
      const int64_t n_bytes = 2 * box.numel() * element_bytes * (n - 1) / n;
      if (n_bytes > 0) use(to, box, n_bytes);
    }
    return;
  }
  for (const OwnedBox& sent : boxes_sent(step, rank)) use(sent.rank, sent.box, sent.box.numel() * element_bytes);
}

/// The boxes that `rank` sends, ordered by receiver and offset.
std::vector<SentBox> sent_by(const Step& step, int64_t element_bytes, int64_t rank) {
  std::vector<SentBox> found;
  each_sent(step, element_bytes, rank,
            [&](int64_t to, const Box& box, int64_t n_bytes) { found.push_back({rank, to, box, n_bytes}); });
  std::ranges::sort(found, [](const SentBox& a, const SentBox& b) {
    return a.to != b.to ? a.to < b.to : std::ranges::lexicographical_compare(a.box.offsets, b.box.offsets);
  });
  return found;
}

/// Adds up bytes by block and by mesh dim.
class Counting {
 public:
  Counting(const Plan& plan, int64_t max_blocks) : plan_(plan), ranks_(ranks_of(plan)) {
    const auto n = static_cast<int64_t>(ranks_.size()), n_blocks = std::min(n, max_blocks);
    matrix_.blocks.resize(n_blocks);
    matrix_.bytes.assign(n_blocks * n_blocks, 0);
    matrix_.bytes_along.assign(plan.source.grid().shape.size(), 0);
    matrix_.crosses.assign(plan.source.grid().shape.size(), false);
    matrix_.n_ranks = n;
    for (int64_t block = 0; block < n_blocks; ++block)
      for (int64_t index = block * n / n_blocks; index < (block + 1) * n / n_blocks; ++index) {
        matrix_.blocks[block].push_back(ranks_[index]);
        places_.push_back({ranks_[index], index, block});
      }
    by_rank_ = places_;
    std::ranges::sort(by_rank_, {}, &Place::rank);
  }

  void add(const Step& step, int64_t max_messages) {
    // A sample of ranks estimates the number of messages.
    const std::vector<int64_t> sample = evenly_spaced(ranks_, kProbes);
    int64_t n_messages = 0;
    for (const int64_t rank : sample)
      each_sent(step, plan_.element_bytes, rank, [&](int64_t, const Box&, int64_t) { ++n_messages; });
    const int64_t per_rank = std::max<int64_t>(1, n_messages / static_cast<int64_t>(sample.size()));
    const auto n_asked = std::max(static_cast<int64_t>(matrix_.blocks.size()), max_messages / per_rank);
    const std::vector<int64_t> senders = evenly_spaced(ranks_, static_cast<size_t>(n_asked));
    const double scale = static_cast<double>(ranks_.size()) / static_cast<double>(senders.size());
    for (const int64_t rank : senders) count(step, rank, scale);
    const auto n_senders = static_cast<int64_t>(senders.size());
    matrix_.n_senders_asked = matrix_.n_senders_asked == 0 ? n_senders : std::min(matrix_.n_senders_asked, n_senders);
  }

  TrafficMatrix result() && { return std::move(matrix_); }

 private:
  static constexpr size_t kProbes = 16;

  struct Place {
    int64_t rank, index, block;
  };

  void count(const Step& step, int64_t rank, double scale) {
    const Place from = place_of(rank);
    each_sent(step, plan_.element_bytes, rank, [&](int64_t receiver, const Box&, int64_t counted) {
      const auto n_bytes = static_cast<int64_t>(static_cast<double>(counted) * scale + 0.5);
      const Place to = place_of(receiver);
      matrix_.bytes[from.block * static_cast<int64_t>(matrix_.blocks.size()) + to.block] += n_bytes;
      count_link(from.index, to.index, n_bytes);
    });
  }

  const Place& place_of(int64_t rank) const {
    const int64_t guess = rank - ranks_.front();  // a guess that holds for consecutive ranks
    if (guess >= 0 && guess < static_cast<int64_t>(places_.size()) && places_[guess].rank == rank)
      return places_[guess];
    return *std::ranges::lower_bound(by_rank_, rank, {}, &Place::rank);
  }

  /// Counts bytes for the first dim of the source's mesh in which the two places differ, and marks every dim that differs.
  void count_link(int64_t a, int64_t b, int64_t n_bytes) {
    const RankGrid& grid = plan_.source.grid();
    if (a >= grid.size() || b >= grid.size()) {
      matrix_.bytes_across += n_bytes;
      return;
    }
    int64_t stride = grid.size();
    bool is_first = true;
    for (size_t mesh_dim = 0; mesh_dim < grid.shape.size(); ++mesh_dim) {
      stride /= grid.shape[mesh_dim];
      if (a / stride % grid.shape[mesh_dim] == b / stride % grid.shape[mesh_dim]) continue;
      matrix_.crosses[mesh_dim] = true;
      if (std::exchange(is_first, false)) matrix_.bytes_along[mesh_dim] += n_bytes;
    }
  }

  const Plan& plan_;
  std::vector<int64_t> ranks_;
  std::vector<Place> places_, by_rank_;  // in the order of ranks_, and sorted
  TrafficMatrix matrix_;
};

}  // namespace

int64_t TrafficMatrix::total() const { return std::reduce(bytes.begin(), bytes.end(), int64_t{0}); }

TrafficMatrix traffic_matrix(const Plan& plan, int64_t max_blocks, int64_t max_messages) {
  Counting counting(plan, max_blocks);
  for (const Step& step : plan.steps) counting.add(step, max_messages);
  return std::move(counting).result();
}

TrafficMatrix traffic_matrix(const Plan& plan, const Step& step, int64_t max_blocks, int64_t max_messages) {
  Counting counting(plan, max_blocks);
  counting.add(step, max_messages);
  return std::move(counting).result();
}

TrafficMatrix folded(const TrafficMatrix& matrix, int64_t max_blocks) {
  const auto n = static_cast<int64_t>(matrix.blocks.size()), n_blocks = std::min(n, max_blocks);
  TrafficMatrix result = matrix;
  result.blocks.assign(n_blocks, {});
  result.bytes.assign(n_blocks * n_blocks, 0);
  std::vector<int64_t> block_of(n);
  for (int64_t block = 0; block < n_blocks; ++block)
    for (int64_t i = block * n / n_blocks; i < (block + 1) * n / n_blocks; ++i) {
      block_of[i] = block;
      result.blocks[block].insert(result.blocks[block].end(), matrix.blocks[i].begin(), matrix.blocks[i].end());
    }
  for (int64_t i = 0; i < n; ++i)
    for (int64_t j = 0; j < n; ++j) result.bytes[block_of[i] * n_blocks + block_of[j]] += matrix.at(i, j);
  return result;
}

std::vector<SentBox> sent_boxes(const Plan& plan, const Step& step, int64_t limit) {
  std::vector<SentBox> result;
  for (const int64_t rank : ranks_of(plan)) {
    for (SentBox& sent : sent_by(step, plan.element_bytes, rank)) {
      if (static_cast<int64_t>(result.size()) == limit) return result;
      result.push_back(std::move(sent));
    }
  }
  return result;
}

}  // namespace shardwise
