#include "wrappers/embedding_plan/distinct_ids.h"

#include <algorithm>
#include <cmath>

namespace shardwise::detail {
namespace {

constexpr int64_t kSingleRows = 32;
constexpr double kGrowth = 1.08;

double probability_of_any(double probability, double n_ids) {
  return probability >= 1 ? 1 : -std::expm1(n_ids * std::log1p(-probability));
}

std::vector<int64_t> run_ends(int64_t n_rows) {
  std::vector<int64_t> ends;
  for (int64_t end = 0; end < n_rows;) {
    const auto grown = static_cast<int64_t>(static_cast<double>(end) * kGrowth);
    end = std::min(n_rows, end < kSingleRows ? end + 1 : std::max(end + 1, grown));
    ends.push_back(end);
  }
  return ends;
}

}  // namespace

DistinctIds::DistinctIds(int64_t n_rows, double skew, double n_ids) : n_rows_(n_rows) {
  if (skew == 0) {
    uniform_ = probability_of_any(1 / static_cast<double>(n_rows), n_ids);
    return;
  }
  ends_ = run_ends(n_rows);
  std::vector<double> weights;  // weight of one row of each run
  double total = 0;
  int64_t begin = 0;
  for (const int64_t end : ends_) {
    const double middle = (static_cast<double>(begin + 1) + static_cast<double>(end)) / 2;
    weights.push_back(std::pow(middle, -skew));
    total += weights.back() * static_cast<double>(end - begin);
    begin = end;
  }
  double sum = 0;
  begin = 0;
  for (size_t i = 0; i < ends_.size(); ++i) {
    sum += probability_of_any(weights[i] / total, n_ids) * static_cast<double>(ends_[i] - begin);
    until_end_.push_back(sum);
    begin = ends_[i];
  }
}

double DistinctIds::below(int64_t row) const {
  if (ends_.empty()) return uniform_ * static_cast<double>(row);
  if (row <= 0) return 0;
  const auto run = static_cast<size_t>(std::ranges::lower_bound(ends_, row) - ends_.begin());
  const int64_t begin = run == 0 ? 0 : ends_[run - 1];
  const double before = run == 0 ? 0 : until_end_[run - 1];
  const double share = static_cast<double>(row - begin) / static_cast<double>(ends_[run] - begin);
  return before + share * (until_end_[run] - before);
}

}  // namespace shardwise::detail
