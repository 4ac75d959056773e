#include "wrappers/embedding_plan/load_bound.h"

#include "wrappers/embedding_plan/table_choices.h"

#include <algorithm>
#include <limits>

namespace shardwise::detail {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr int kHalvings = 40;

struct Sums {
  double worth = 0, seconds = 0, first_seconds = 0, n_bytes = 0;  // infinite if a table has no choice
};

Sums cheapest(const std::vector<TableChoices>& choices, const SliceLimit& limit, const Prices& prices) {
  Sums sums;
  for (const TableChoices& table : choices) {
    const auto choice = table.cheapest(limit, prices);
    if (!choice) return {kInfinity, kInfinity, kInfinity, kInfinity};
    sums.worth += prices.of(*choice);
    sums.seconds += choice->seconds;
    sums.first_seconds += choice->first_seconds;
    sums.n_bytes += choice->n_bytes;
  }
  return sums;
}

/// True if in no plan every rank finishes within `seconds`. The sum is a concave function of each price, and is largest at the price at which the
/// priced resource just fits.
bool is_ruled_out(const std::vector<TableChoices>& choices, double seconds, double memory) {
  const SliceLimit limit{seconds, memory};
  const Sums fastest = cheapest(choices, limit, {});
  if (fastest.worth > seconds) return true;
  if (fastest.first_seconds > fastest.seconds) {
    double low = 0, high = 1;
    for (int i = 0; i < kHalvings / 2; ++i) {
      const double weight = (low + high) / 2;
      const Sums sums = cheapest(choices, limit, {weight, 0});
      if (sums.worth > seconds) return true;
      (sums.first_seconds > sums.seconds ? low : high) = weight;
    }
  }
  if (fastest.n_bytes > memory) {
    double low = 0, high = kInfinity;
    for (int i = 0; i < 2 * kHalvings && !(high <= low * (1 + 1e-6)); ++i) {
      const double price = high < kInfinity ? (low + high) / 2 : std::max(2 * low, seconds / memory);
      const Sums sums = cheapest(choices, limit, {0, price});
      if (sums.worth - price * memory > seconds) return true;
      (sums.n_bytes > memory ? low : high) = price;
    }
  }
  return false;
}

}  // namespace

double load_bound(const LoadModel& model, const EmbeddingPlanOptions& options, bool may_replicate, bool may_shard) {
  const auto choices = table_choices(model, options, may_replicate, may_shard);
  if (!std::ranges::all_of(choices, &TableChoices::any)) return kInfinity;
  const double memory = options.memory_per_rank ? static_cast<double>(*options.memory_per_rank) : kInfinity;
  // Without limits on slices, the means are as small as possible.
  double low = cheapest(choices, {kInfinity, kInfinity}, {}).seconds, high = low;
  for (int i = 0; is_ruled_out(choices, high, memory); ++i) {
    if (i == 2 * kHalvings) return kInfinity;  // nothing fits the memory
    low = high;
    high *= 2;
  }
  for (int i = 0; i < kHalvings && low < high * (1 - 1e-6); ++i) {
    const double middle = (low + high) / 2;
    (is_ruled_out(choices, middle, memory) ? low : high) = middle;
  }
  return model.fixed_seconds(may_replicate, may_shard) + low;
}

double load_bound(const LoadModel& model, const EmbeddingPlanOptions& options) {
  return std::min({load_bound(model, options, false, true), load_bound(model, options, true, false),
                   load_bound(model, options, true, true)});
}

}  // namespace shardwise::detail
