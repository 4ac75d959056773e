#include "ops/support/planned_values.h"

#include "text/check.h"

#include <ATen/ops/tensor.h>

#include <array>
#include <cmath>
#include <mutex>
#include <numeric>
#include <utility>

namespace shardwise {
namespace {

constexpr int64_t kFineness = 64;      // chunks of Zipf's law are at most this part of the rows before them
constexpr double kLeastShare = 1e-12;  // of an expert, so that tokens have enough experts to choose from

struct Planned {
  IdModel model;
  std::mutex mutex;  // protects what follows
  std::set<const Spec*> tables;
};

Planned& planned = *new Planned;  // never destroyed: programs may read it at exit

/// Rows whose weights are close to a parabola: those of the first, the middle and the last one.
struct Chunk {
  Interval rows;
  std::array<double, 3> weights;

  /// The sum of of(weight) over the rows.
  template <class Of>
  double sum(const Of& of) const {
    const auto n = static_cast<double>(rows.length());
    const double middle = of(weights[1]);
    if (n == 1) return middle;
    return n * (middle + (n + 1) / (6 * (n - 1)) * (of(weights[0]) - 2 * middle + of(weights[2])));
  }
};

std::vector<Chunk> chunks_of(double exponent, Interval rows, int64_t /*n_rows*/) {
  std::vector<Chunk> chunks;
  const auto weight = [&](double row) { return std::pow(row + 1, -exponent); };
  for (int64_t begin = rows.begin, end = 0; begin < rows.end; begin = end) {
    end = std::min(rows.end, begin + std::max<int64_t>(1, begin / kFineness));
    const auto first = static_cast<double>(begin), last = static_cast<double>(end - 1);
    chunks.push_back({{begin, end}, {weight(first), weight((first + last) / 2), weight(last)}});
  }
  return chunks;
}

std::vector<Chunk> chunks_of(const std::vector<double>& weights, Interval rows, int64_t n_rows) {
  const auto m = static_cast<int64_t>(weights.size());
  SW_CHECK_VALUE(
      m <= n_rows || n_rows == 0,
      "[dry_run] the histogram of ids has {} numbers, but a table or a layer of experts has {}. Give at most "
      "one number per row and expert.",
      m, n_rows);
  std::vector<Chunk> chunks;
  for (int64_t i = 0; i < m; ++i) {
    const auto bound = [&](int64_t part) { return std::clamp((part * n_rows + m - 1) / m, rows.begin, rows.end); };
    const double weight = weights[static_cast<size_t>(i)];
    if (bound(i) < bound(i + 1)) chunks.push_back({{bound(i), bound(i + 1)}, {weight, weight, weight}});
  }
  return chunks;
}

std::vector<Chunk> chunks_of(std::monostate, Interval, int64_t) { return {}; }

}  // namespace

void plan_ids(IdModel model) {
  const std::lock_guard lock(planned.mutex);
  planned.model = std::move(model);
  planned.tables.clear();
}

bool has_id_model() { return planned.model.index() != 0; }

void note_planned(const Spec& rows) {
  const std::lock_guard lock(planned.mutex);
  planned.tables.insert(&rows);
}

const std::set<const Spec*>& planned_tables() { return planned.tables; }

PlannedIds::PlannedIds(int64_t n_ids, int64_t n_rows, std::optional<Interval> among)
    : n_(n_ids), rows_(among.value_or(Interval{0, n_rows})) {
  const auto chunks = std::visit([&](const auto& model) { return chunks_of(model, rows_, n_rows); }, planned.model);
  double all = 0;
  for (const Chunk& chunk : chunks) all += chunk.sum([](double weight) { return weight; });
  if (all == 0) return;  // also for rows that no id names
  Mark mark{static_cast<double>(rows_.begin), 0, 0};
  marks_.push_back(mark);
  const auto n = static_cast<double>(n_);
  for (const Chunk& chunk : chunks) {
    mark.row = static_cast<double>(chunk.rows.end);
    mark.share += chunk.sum([&](double weight) { return weight / all; });
    if (n_ > 0) mark.named += chunk.sum([&](double weight) { return -std::expm1(n * std::log1p(-weight / all)); });
    marks_.push_back(mark);
  }
}

double PlannedIds::at(double Mark::* known, double value, double Mark::* wanted) const {
  const auto next = std::ranges::lower_bound(marks_, value, {}, known);
  if (next == marks_.begin()) return marks_.front().*wanted;
  if (next == marks_.end()) return marks_.back().*wanted;
  const Mark &a = *(next - 1), &b = *next;
  return a.*wanted + (b.*wanted - a.*wanted) * (value - a.*known) / (b.*known - a.*known);
}

int64_t PlannedIds::rows_below(int64_t row) const {
  if (!marks_.empty()) return std::llround(at(&Mark::row, static_cast<double>(row), &Mark::named));
  const int64_t n_rows = rows_.length(), n_named = std::min(n_, n_rows);
  return n_rows == 0 ? 0 : (n_named * (row - rows_.begin) + n_rows - 1) / n_rows;
}

double PlannedIds::share_below(int64_t row) const {
  if (!marks_.empty()) return at(&Mark::row, static_cast<double>(row), &Mark::share);
  return static_cast<double>(row - rows_.begin) / static_cast<double>(std::max<int64_t>(rows_.length(), 1));
}

at::Tensor PlannedIds::ids() const {
  if (marks_.empty()) return spread_rows(n_, rows_.length()).add_(rows_.begin);
  std::vector<int64_t> rows;
  // A row that stands for those among which ids name one row in the mean.
  const double last = std::max(marks_.back().named - 0.5, 0.0);
  for (int64_t i = 0; i < n_; ++i) {
    const double share = (static_cast<double>(i) + 0.5) / static_cast<double>(n_);
    const double nth = std::min(std::floor(at(&Mark::share, share, &Mark::named)) + 0.5, last);
    rows.push_back(std::min(static_cast<int64_t>(at(&Mark::named, nth, &Mark::row)), rows_.end - 1));
  }
  return at::tensor(rows, at::kLong);
}

namespace {

/// The choices per token of the experts up to each one. Their shares are those of `model`, but at most 1 each.
std::vector<double> choices_below(const PlannedIds& model, int64_t n_choices, int64_t n_experts) {
  std::vector<double> shares;
  for (int64_t expert = 0; expert < n_experts; ++expert)
    shares.push_back(std::max(model.share_below(expert + 1) - model.share_below(expert), kLeastShare));
  std::vector<bool> has_all(shares.size());
  double left = static_cast<double>(n_choices), sum = std::accumulate(shares.begin(), shares.end(), 0.0);
  for (bool is_new = true; std::exchange(is_new, false);)
    for (size_t expert = 0; expert < shares.size(); ++expert)
      if (!has_all[expert] && shares[expert] * left >= sum) {
        has_all[expert] = is_new = true;
        sum -= shares[expert];
        left -= 1;
      }
  double end = 0;
  for (size_t expert = 0; expert < shares.size(); ++expert)
    shares[expert] = end += has_all[expert] ? 1 : shares[expert] * left / sum;
  return shares;
}

}  // namespace

int64_t planned_begin(int64_t group, int64_t n, int64_t n_groups) {
  if (n_groups == 0) return 0;
  if (has_id_model()) return std::llround(PlannedIds(n, n_groups).share_below(group) * static_cast<double>(n));
  return group * (n / n_groups) + std::min(group, n % n_groups);
}

at::Tensor planned_experts(int64_t n, int64_t n_choices, int64_t n_experts) {
  if (!has_id_model()) return at::arange(n * n_choices, at::kLong).remainder_(std::max<int64_t>(n_experts, 1));
  const std::vector<double> ends = choices_below(PlannedIds(n, n_experts), n_choices, n_experts);
  std::vector<int64_t> experts;
  for (int64_t token = 0; token < n; ++token)
    for (int64_t choice = 0; choice < n_choices; ++choice) {
      const double at = (static_cast<double>(token) + 0.5) / static_cast<double>(n) + static_cast<double>(choice);
      const auto found = std::ranges::upper_bound(ends, at) - ends.begin();
      experts.push_back(std::min<int64_t>(found, n_experts - 1));
    }
  return at::tensor(experts, at::kLong);
}

}  // namespace shardwise
