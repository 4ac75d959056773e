#include "wrappers/embedding_plan/distinct_ids.h"

#include <gtest/gtest.h>

#include <cmath>

namespace shardwise::distinct_ids_test {
namespace {

using detail::DistinctIds;

/// Row by row.
double expected(int64_t n_rows, double skew, double n_ids, Interval rows) {
  double total = 0, sum = 0;
  for (int64_t k = 0; k < n_rows; ++k) total += std::pow(k + 1, -skew);
  for (int64_t k = rows.begin; k < rows.end; ++k) sum += 1 - std::pow(1 - std::pow(k + 1, -skew) / total, n_ids);
  return sum;
}

TEST(DistinctIdsTest, AreTheSumOverRows) {
  // rows, skew, ids
  const std::vector<std::tuple<int64_t, double, double>> cases{
      {1, 0, 1},       {1, 1, 5},        {8, 0, 8},      {8, 1, 8},
      {1000, 0, 300},  {1000, 0.7, 300}, {5000, 1.2, 9}, {100000, 1.05, 20000},
      {100000, 3, 1e6}};
  for (const auto& [n_rows, skew, n_ids] : cases) {
    const double whole = expected(n_rows, skew, n_ids, {0, n_rows});
    EXPECT_NEAR(DistinctIds(n_rows, skew, n_ids).all(), whole, 2e-3 * whole) << n_rows << " " << skew;
  }
}

TEST(DistinctIdsTest, PartsAddUpAndFirstRowsAreHot) {
  const DistinctIds ids(100'000, 1.1, 5000);
  double sum = 0;
  for (int64_t part = 0; part < 7; ++part) {
    const Interval rows{part * 100'000 / 7, (part + 1) * 100'000 / 7};
    const double within = ids.within(rows);
    EXPECT_NEAR(within, expected(100'000, 1.1, 5000, rows), 0.02 * within) << part;
    sum += within;
  }
  EXPECT_NEAR(sum, ids.all(), 1e-9 * sum);
  EXPECT_GT(ids.within({0, 14285}), 5 * ids.within({85715, 100'000}));
}

TEST(DistinctIdsTest, NoMoreThanIdsOrRows) {
  for (const double skew : {0.0, 0.5, 1.0, 2.0})
    for (const double n_ids : {1.0, 1e3, 1e6, 1e12}) {
      const DistinctIds ids(1'000'000'000, skew, n_ids);
      EXPECT_LE(ids.all(), std::min(n_ids, 1e9) * (1 + 1e-9));
      EXPECT_GT(ids.all(), 0);
    }
}

}  // namespace
}  // namespace shardwise::distinct_ids_test
