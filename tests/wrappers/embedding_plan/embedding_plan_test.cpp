#include "wrappers/embedding_plan/embedding_plan.h"

#include <c10/util/Exception.h>
#include <gtest/gtest.h>

#include <numeric>
#include <set>

namespace shardwise::embedding_plan_test {
namespace {

using Strategy = EmbeddingStrategy;
using Numbers = std::vector<int64_t>;

TableConfig table(std::string name, int64_t n_rows, int64_t n_columns, Combiner combiner = Combiner::kSum) {
  return {std::move(name), n_rows, n_columns, "float32", combiner};
}

EmbeddingPlanOptions with(Strategy strategy) {
  EmbeddingPlanOptions options;
  options.strategy = strategy;
  return options;
}

std::vector<Treatment> treatments(const EmbeddingPlan& plan) {
  std::vector<Treatment> result;
  for (const TablePlan& each : plan.table_plans) result.push_back(each.treatment);
  return result;
}

std::vector<int64_t> ranks_of(const EmbeddingPlan& plan, size_t t) {
  std::vector<int64_t> result;
  for (const TableSlice& slice : plan.table_plans[t].slices) result.push_back(slice.rank);
  return result;
}

std::vector<int64_t> widths_of(const EmbeddingPlan& plan, size_t t) {
  std::vector<int64_t> result;
  for (const TableSlice& slice : plan.table_plans[t].slices) result.push_back(slice.columns.length());
  return result;
}

std::vector<int64_t> heights_of(const EmbeddingPlan& plan, size_t t) {
  std::vector<int64_t> result;
  for (const TableSlice& slice : plan.table_plans[t].slices) result.push_back(slice.rows.length());
  return result;
}

std::vector<int64_t> bytes_of(const EmbeddingPlan& plan) {
  std::vector<int64_t> result;
  for (const RankEmbeddings& rank : plan.ranks) result.push_back(rank.load.n_bytes());
  return result;
}

bool contains(const std::string& text, const std::string& words) { return text.find(words) != std::string::npos; }

template <class Call>
std::string words_of_error(const Call& call) {
  try {
    call();
  } catch (const c10::ValueError& error) {
    return error.msg();
  }
  return "no error";
}

TEST(EmbeddingPlanTest, D2GroupsAreByElementsInThisOrder) {
  EmbeddingPlanOptions options = with(Strategy::kBasic);
  options.data_parallel_threshold = 40;
  options.row_slice_threshold = 1000;
  const auto plan = plan_embeddings({table("at most", 10, 4), table("more", 41, 1), table("less", 333, 3),
                                     table("at least", 250, 4), table("huge", 1000, 4)},
                                    2, options);
  EXPECT_EQ(treatments(plan),
            (std::vector<Treatment>{Treatment::kReplicated, Treatment::kTableParallel, Treatment::kTableParallel,
                                    Treatment::kRowParallel, Treatment::kRowParallel}));
  EXPECT_EQ(ranks_of(plan, 0), (Numbers{0, 1}));
  EXPECT_EQ(heights_of(plan, 0), (Numbers{10, 10}));
  EXPECT_PRED2(contains, plan.table_plans[0].reason, "40 elements are at most data_parallel_threshold 40");
  EXPECT_PRED2(contains, plan.table_plans[3].reason, "1,000 elements are at least row_slice_threshold 1,000");
}

TEST(EmbeddingPlanTest, D3ColumnSlicesArePowersOfTwo) {
  EmbeddingPlanOptions options = with(Strategy::kBasic);
  options.column_slice_threshold = 100;
  // rows, columns, slices on 4 ranks
  const std::vector<std::array<int64_t, 3>> cases{{10, 10, 1}, {10, 11, 2}, {10, 20, 2}, {10, 21, 4},
                                                  {10, 40, 4}, {10, 90, 4}, {99, 3, 3},  {999, 1, 1}};
  std::vector<TableConfig> tables;
  for (const auto& [n_rows, n_columns, n_slices] : cases)
    tables.push_back(table("t" + std::to_string(tables.size()), n_rows, n_columns));
  const auto plan = plan_embeddings(tables, 4, options);
  for (size_t t = 0; t < cases.size(); ++t) EXPECT_EQ(widths_of(plan, t).size(), cases[t][2]) << t;
}

TEST(EmbeddingPlanTest, D3SlicesAreAtMostTheRanksAndTheFirstAreWider) {
  EmbeddingPlanOptions options = with(Strategy::kBasic);
  options.column_slice_threshold = 1;
  const auto plan = plan_embeddings({table("t", 5, 17)}, 3, options);
  EXPECT_EQ(widths_of(plan, 0), (Numbers{6, 6, 5}));
  EXPECT_EQ(plan.table_plans[0].slices[1].columns, (Interval{6, 12}));
}

TEST(EmbeddingPlanTest, D3WithoutAThresholdTheLargestAreHalved) {
  const auto plan = [](const std::vector<TableConfig>& tables, int64_t n_ranks) {
    const auto made = plan_embeddings(tables, n_ranks, with(Strategy::kBasic));
    std::vector<size_t> counts;
    for (size_t t = 0; t < tables.size(); ++t) counts.push_back(made.table_plans[t].slices.size());
    return counts;
  };
  EXPECT_EQ(plan({table("a", 100, 8), table("b", 10, 8)}, 2), (std::vector<size_t>{1, 1}));
  EXPECT_EQ(plan({table("a", 100, 8), table("b", 10, 8)}, 3), (std::vector<size_t>{2, 1}));
  EXPECT_EQ(plan({table("a", 100, 8), table("b", 60, 8)}, 4), (std::vector<size_t>{2, 2}));
  EXPECT_EQ(plan({table("a", 100, 8), table("b", 40, 8)}, 4), (std::vector<size_t>{4, 1}));
  EXPECT_EQ(plan({table("a", 10, 8), table("b", 10, 8)}, 3), (std::vector<size_t>{2, 1})) << "the first of equals";
  EXPECT_EQ(plan({table("a", 10, 8)}, 3), (std::vector<size_t>{3})) << "the next power of two, then at most the ranks";
  EXPECT_EQ(plan({table("a", 100, 2), table("b", 10, 8)}, 6), (std::vector<size_t>{2, 4})) << "no more than columns";
}

TEST(EmbeddingPlanTest, D4BasicIsRoundRobin) {
  const auto plan =
      plan_embeddings({table("a", 10, 2), table("b", 30, 2), table("c", 20, 2)}, 2, with(Strategy::kBasic));
  EXPECT_EQ(ranks_of(plan, 0), (Numbers{0}));
  EXPECT_EQ(ranks_of(plan, 1), (Numbers{1}));
  EXPECT_EQ(ranks_of(plan, 2), (Numbers{0}));
}

TEST(EmbeddingPlanTest, D4MemoryBalancedIsDealtForthAndBack) {
  std::vector<TableConfig> tables;
  for (const int64_t n_rows : {3, 9, 1, 8, 7, 7, 2})
    tables.push_back(table("t" + std::to_string(tables.size()), n_rows, 1));
  const auto plan = plan_embeddings(tables, 2, with(Strategy::kMemoryBalanced));
  // 9 8 7 7 3 2 1, ties by table: 0 1 1 0 0 1 1
  EXPECT_EQ(ranks_of(plan, 1), (Numbers{0}));
  EXPECT_EQ(ranks_of(plan, 3), (Numbers{1}));
  EXPECT_EQ(ranks_of(plan, 4), (Numbers{1}));
  EXPECT_EQ(ranks_of(plan, 5), (Numbers{0}));
  EXPECT_EQ(ranks_of(plan, 0), (Numbers{0}));
  EXPECT_EQ(ranks_of(plan, 6), (Numbers{1}));
  EXPECT_EQ(ranks_of(plan, 2), (Numbers{1}));
  EXPECT_EQ(bytes_of(plan), (Numbers{4 * 19, 4 * 18}));
}

TEST(EmbeddingPlanTest, D4MemoryOptimizedPutsTheLargestOnTheLightest) {
  std::vector<TableConfig> tables;
  for (const int64_t n_rows : {3, 5, 3, 4, 3}) tables.push_back(table("t" + std::to_string(tables.size()), n_rows, 1));
  const auto plan = plan_embeddings(tables, 2, with(Strategy::kMemoryOptimized));
  EXPECT_EQ(ranks_of(plan, 1), (Numbers{0}));
  EXPECT_EQ(ranks_of(plan, 3), (Numbers{1}));
  EXPECT_EQ(ranks_of(plan, 0), (Numbers{1})) << "ties by table";
  EXPECT_EQ(ranks_of(plan, 2), (Numbers{0}));
  EXPECT_EQ(ranks_of(plan, 4), (Numbers{1}));
  EXPECT_EQ(bytes_of(plan), (Numbers{4 * 8, 4 * 10}));
}

TEST(EmbeddingPlanTest, D4OptimizerStateCountsAsBytes) {
  EmbeddingPlanOptions options = with(Strategy::kMemoryOptimized);
  options.state_bytes_per_element = 4;
  options.state_bytes_per_row = 8;
  const auto plan = plan_embeddings({table("a", 10, 3)}, 1, options);
  EXPECT_EQ(plan.ranks[0].load.weight_bytes, 120);
  EXPECT_EQ(plan.ranks[0].load.state_bytes, 120 + 80);
}

TEST(EmbeddingPlanTest, D4SlicesThatMeetAreMerged) {
  EmbeddingPlanOptions options = with(Strategy::kMemoryBalanced);
  options.column_slice_threshold = 400;
  // 400, 300 and 300 elements on ranks 0, 1 and 1
  const auto plan = plan_embeddings({table("x", 100, 4), table("t", 100, 6)}, 2, options);
  EXPECT_EQ(ranks_of(plan, 1), (Numbers{1}));
  EXPECT_EQ(widths_of(plan, 1), (Numbers{6}));
}

TEST(EmbeddingPlanTest, D4MergedSlicesAdjoin) {
  EmbeddingPlanOptions options = with(Strategy::kMemoryOptimized);
  options.column_slice_threshold = 300;
  // 850, 300, then t's 300, 300, 200 and 200 elements on ranks 0, 1, then 2, 3, 1 and 2: its first and last slice meet.
  const auto plan = plan_embeddings({table("tall", 850, 1), table("x", 300, 1), table("t", 100, 10)}, 4, options);
  EXPECT_EQ(ranks_of(plan, 2), (Numbers{2, 3, 1}));
  EXPECT_EQ(widths_of(plan, 2), (Numbers{5, 3, 2}));
  EXPECT_EQ(plan.table_plans[2].slices[1].columns, (Interval{5, 8}));
}

TEST(EmbeddingPlanTest, D5OneGroupPerWidthDtypeAndCombinerWithIdOffsets) {
  std::vector<TableConfig> tables{table("a", 10, 4), table("b", 20, 8), table("c", 30, 4),
                                  table("mean", 40, 4, Combiner::kMean), table("half", 50, 4)};
  tables[4].dtype = "float16";
  tables.push_back(table("replica", 1, 4));
  EmbeddingPlanOptions options = with(Strategy::kBasic);
  options.data_parallel_threshold = 4;
  const auto plan = plan_embeddings(tables, 1, options);
  const auto& groups = plan.ranks[0].groups;
  ASSERT_EQ(groups.size(), 5U);
  EXPECT_EQ(groups[0], (EmbeddingGroup{true, 4, "float32", Combiner::kSum, 1}));
  EXPECT_EQ(groups[1], (EmbeddingGroup{false, 4, "float32", Combiner::kSum, 40}));
  EXPECT_EQ(groups[2], (EmbeddingGroup{false, 8, "float32", Combiner::kSum, 20}));
  EXPECT_EQ(groups[3].combiner, Combiner::kMean);
  EXPECT_EQ(groups[4].dtype, "float16");
  EXPECT_EQ(plan.table_plans[2].slices[0].group, 1U);
  EXPECT_EQ(plan.table_plans[2].slices[0].first_row, 10);
  EXPECT_EQ(plan.table_plans[5].slices[0].group, 0U);
  const auto slices = plan.slices_on(0);
  ASSERT_EQ(slices.size(), 6U);
  EXPECT_EQ(slices[0].table, 5U);
  EXPECT_EQ(slices[2].table, 2U);
}

TEST(EmbeddingPlanTest, D6RowSlicesAreBalanced) {
  EmbeddingPlanOptions options = with(Strategy::kBasic);
  options.row_slice_threshold = 1;
  const auto plan = plan_embeddings({table("ten", 10, 2), table("two", 2, 2)}, 4, options);
  EXPECT_EQ(heights_of(plan, 0), (Numbers{3, 3, 2, 2})) << "not torch.chunk's 3 3 3 1";
  EXPECT_EQ(plan.table_plans[0].slices[2].rows, (Interval{6, 8}));
  EXPECT_EQ(heights_of(plan, 1), (Numbers{1, 1, 0, 0}));
  EXPECT_EQ(ranks_of(plan, 1), (Numbers{0, 1, 2, 3}));
  EXPECT_EQ(plan.table_plans[1].slices[1].first_row, 3) << "after the rows of the first table";
}

TEST(EmbeddingPlanTest, D11TooFewSlicesNameTheThresholdToLower) {
  EmbeddingPlanOptions options;
  options.column_slice_threshold = 1000;
  EXPECT_PRED2(contains, words_of_error([&] { plan_embeddings({table("a", 100, 8), table("b", 50, 8)}, 4, options); }),
               "2 table-parallel tables have 2 slices, fewer than the 4 ranks. Lower column_slice_threshold "
               "to at most 399 elements");
  options.column_slice_threshold = 400;
  EXPECT_EQ(plan_embeddings({table("a", 100, 8), table("b", 50, 8)}, 3, options).table_plans[0].slices.size(), 2);
  const std::string narrow = words_of_error([&] { plan_embeddings({table("a", 100, 2), table("b", 50, 1)}, 4, {}); });
  EXPECT_PRED2(contains, narrow, "lower row_slice_threshold to at most 50 elements");
}

TEST(EmbeddingPlanTest, D11TheNamedThresholdIsEnough) {
  const std::vector<TableConfig> tables{table("a", 100, 8), table("b", 50, 8), table("c", 7, 3)};
  for (const int64_t n_ranks : {4, 7, 11, 19}) {
    EmbeddingPlanOptions options;
    options.column_slice_threshold = 1 << 20;
    const std::string words = words_of_error([&] { plan_embeddings(tables, n_ranks, options); });
    const std::string before = "column_slice_threshold to at most ";
    ASSERT_PRED2(contains, words, before);
    options.column_slice_threshold = std::stoll(words.substr(words.find(before) + before.size()));
    EXPECT_EQ(plan_embeddings(tables, n_ranks, options).ranks.size(), n_ranks);
    ++*options.column_slice_threshold;
    EXPECT_PRED2(contains, words_of_error([&] { plan_embeddings(tables, n_ranks, options); }), before);
  }
}

TEST(EmbeddingPlanTest, D11NothingTableParallelIsNoError) {
  EmbeddingPlanOptions options;
  options.row_slice_threshold = 10;
  options.data_parallel_threshold = 9;
  EXPECT_EQ(plan_embeddings({table("rows", 100, 1), table("replica", 9, 1)}, 8, options).n_ranks, 8);
}

TEST(EmbeddingPlanTest, BadInputIsAnErrorThatSaysWhat) {
  const auto error = [](std::vector<TableConfig> tables, int64_t n_ranks, const auto& change) {
    EmbeddingPlanOptions options;
    change(options);
    return words_of_error([&] { plan_embeddings(std::move(tables), n_ranks, options); });
  };
  const auto as_is = [](EmbeddingPlanOptions& /*options*/) {};
  const TableConfig good = table("t", 10, 4);
  EXPECT_PRED2(contains, error({}, 2, as_is), "no tables");
  EXPECT_PRED2(contains, error({good, good}, 2, as_is), "two tables have the name \"t\"");
  EXPECT_PRED2(contains, error({table("t", 0, 4)}, 2, as_is), "table \"t\" is [0, 4]");
  EXPECT_PRED2(contains, error({table("t", 4, -1)}, 2, as_is), "[4, -1]");
  EXPECT_PRED2(contains, error({table("", 4, 1)}, 2, as_is), "empty name");
  EXPECT_PRED2(contains, error({table("t", int64_t{1} << 40, 1 << 20)}, 2, as_is), "elements. Give a smaller one");
  TableConfig odd = good;
  odd.dtype = "complex64";
  EXPECT_PRED2(contains, error({odd}, 2, as_is), "dtype \"complex64\"");
  odd = good;
  odd.skew = -1;
  EXPECT_PRED2(contains, error({odd}, 2, as_is), "skew -1");
  odd = good;
  odd.ids_per_sample = std::numeric_limits<double>::quiet_NaN();
  EXPECT_PRED2(contains, error({odd}, 2, as_is), "ids per sample");
  EXPECT_PRED2(contains, error({good}, 0, as_is), "0 ranks");
  EXPECT_PRED2(contains, error({good}, -3, as_is), "-3 ranks");
  EXPECT_PRED2(contains, error({good}, 2, [](auto& o) { o.column_slice_threshold = 0; }),
               "column_slice_threshold is 0");
  EXPECT_PRED2(contains, error({good}, 2, [](auto& o) { o.row_slice_threshold = -1; }), "row_slice_threshold is -1");
  EXPECT_PRED2(contains,
               error({good}, 2,
                     [](auto& o) {
                       o.data_parallel_threshold = 100;
                       o.row_slice_threshold = 50;
                     }),
               "data_parallel_threshold 100 and row_slice_threshold 50 contradict each other");
  EXPECT_PRED2(contains, error({good}, 2, [](auto& o) { o.batch_per_rank = 0; }), "batch_per_rank is 0");
  EXPECT_PRED2(contains, error({good}, 2, [](auto& o) { o.memory_per_rank = 0; }), "memory_per_rank is 0");
  EXPECT_PRED2(contains, error({good}, 2, [](auto& o) { o.memory_per_rank = 79; }),
               "rank 0 needs 80 bytes, more than memory_per_rank 79");
  EXPECT_PRED2(contains, error({good}, 6, [](auto& o) { o.mesh_shape = {2, 4}; }), "mesh_shape (2, 4)");
  EXPECT_PRED2(contains, error({good}, 4, [](auto& o) { o.links = {{20, 10}, {2, 100}}; }), "2 links are given");
  EXPECT_PRED2(contains, error({good}, 4, [](auto& o) { o.links = {{20, 0}}; }), "0 GB/s is impossible");
  EXPECT_PRED2(contains, error({good}, 4, [](auto& o) { o.machine.memory_gb_per_s = 0; }), "machine of 0 GB/s");
}

TEST(EmbeddingPlanTest, SlicesOfOthersAreArranged) {
  TablePlan columns{Treatment::kTableParallel, {{0, 1, {0, 10}, {2, 4}}, {0, 0, {0, 10}, {0, 2}}}, "theirs"};
  const TablePlan rows{Treatment::kRowParallel, {}, ""}, replica{Treatment::kReplicated, {}, ""};
  const std::vector<TableConfig> tables{table("a", 10, 4), table("b", 5, 2), table("c", 3, 2)};
  const auto plan = arrange_embeddings(tables, 2, {}, {columns, rows, replica});
  EXPECT_EQ(ranks_of(plan, 0), (Numbers{0, 1})) << "by columns";
  EXPECT_EQ(heights_of(plan, 1), (Numbers{3, 2}));
  EXPECT_EQ(plan.table_plans[1].slices[0].first_row, 10) << "the halves of a are 2 wide, too";
  EXPECT_EQ(plan.ranks[0].groups.size(), 2U);

  const auto error = [&](SliceList slices) {
    return words_of_error(
        [&] { arrange_embeddings({tables[0]}, 2, {}, {{Treatment::kTableParallel, std::move(slices), ""}}); });
  };
  EXPECT_PRED2(contains, error({}), "the slices of table \"a\" have 0 of its 40 elements");
  EXPECT_PRED2(contains, error({{0, 2, {0, 10}, {0, 4}}}), "on rank 2");
  EXPECT_PRED2(contains, error({{0, 0, {0, 10}, {0, 5}}}), "is not within table \"a\"");
  EXPECT_PRED2(contains, error({{0, 0, {0, 10}, {0, 3}}, {0, 1, {0, 10}, {2, 4}}}), "overlap");
  EXPECT_PRED2(contains, error({{0, 0, {0, 10}, {0, 2}}, {0, 0, {0, 10}, {2, 4}}}), "two slices on rank 0");
  EXPECT_PRED2(contains, error({{0, 0, {0, 5}, {0, 4}}, {0, 1, {6, 10}, {0, 4}}}), "36 of its 40");
}

TEST(EmbeddingPlanTest, LoadsAddUp) {
  std::vector<TableConfig> tables{table("a", 1000, 16), table("b", 300, 8), table("c", 64, 4)};
  tables[0].skew = 1.1;
  tables[0].ids_per_sample = 5;
  const auto total = [](const EmbeddingPlan& plan) {
    double lookups = 0;
    int64_t n_bytes = 0;
    for (const RankEmbeddings& rank : plan.ranks) {
      lookups += rank.load.lookups;
      n_bytes += rank.load.n_bytes();
    }
    return std::pair(lookups, n_bytes);
  };
  EmbeddingPlanOptions by_rows;
  by_rows.row_slice_threshold = 1;
  const auto [rows_lookups, rows_bytes] = total(plan_embeddings(tables, 3, by_rows));
  const auto [lookups, n_bytes] = total(plan_embeddings(tables, 3, {}));
  EXPECT_NEAR(rows_lookups, lookups, 1e-6 * lookups) << "rows of a table are asked for once, whoever has them";
  EXPECT_EQ(rows_bytes, n_bytes);
  EXPECT_EQ(n_bytes, 4 * (16000 + 2400 + 256));
}

}  // namespace
}  // namespace shardwise::embedding_plan_test
