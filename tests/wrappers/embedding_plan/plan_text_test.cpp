#include "wrappers/embedding_plan/plan_text.h"

#include <gtest/gtest.h>

#include <sstream>

namespace shardwise::plan_text_test {
namespace {

bool contains(const std::string& text, const std::string& words) { return text.find(words) != std::string::npos; }

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

size_t width_of(const std::string& text) {
  size_t n = 0;
  for (const char c : text) n += (c & 0xC0) != 0x80;
  return n;
}

EmbeddingPlan plan_of(int64_t n_tables, int64_t n_ranks, EmbeddingPlanOptions options = {}) {
  std::vector<TableConfig> tables;
  for (int64_t t = 0; t < n_tables; ++t) tables.push_back({"table" + std::to_string(t), 10 + 1000 * t, 16});
  return plan_embeddings(tables, n_ranks, options);
}

EmbeddingPlan small() {
  EmbeddingPlanOptions options;
  options.data_parallel_threshold = 160;
  options.row_slice_threshold = 48'000;
  options.column_slice_threshold = 20'000;
  return plan_of(4, 2, options);  // of 160, 16,160, 32,160 and 48,160 elements
}

TEST(PlanTextTest, TheTableHasALinePerTableWithItsReason) {
  const std::string text = to_string(small());
  EXPECT_PRED2(contains, text, "4 tables on 2 ranks, memory_optimized: a step takes ");
  EXPECT_PRED2(contains, text, "none takes less than ");
  EXPECT_PRED2(contains, text,
               "table0  [10, 16]     float32  sum       replicated           2  0-1        640  160 elements are");
  EXPECT_PRED2(contains, text,
               "table2  [2,010, 16]  float32  sum       table-parallel       1  1      128,640  2 slices of columns: "
               "32,160 elements are ");
  EXPECT_PRED2(contains, text, "; 1 of them is merged with another on its rank");
  EXPECT_PRED2(contains, text, "rank  groups  slices    bytes  lookups");
}

TEST(PlanTextTest, ThePictureSaysWhoHasWhat) {
  const auto lines = lines_of(picture(small()));
  ASSERT_EQ(lines.size(), 7U);
  EXPECT_EQ(lines[0], "table   rank 0        rank 1");
  EXPECT_EQ(lines[1], "table0  whole         whole");
  EXPECT_EQ(lines[2], "table1  columns 0:16  ·");
  EXPECT_EQ(lines[3], "table2  ·             columns 0:16");
  EXPECT_EQ(lines[4], "table3  rows 0:1505   rows 1505:3010");
  EXPECT_PRED2(contains, lines[5], "████████ 100%");
}

TEST(PlanTextTest, ThePictureOf26TablesOn4RanksIsReadable) {
  const auto lines = lines_of(picture(plan_of(26, 4)));
  EXPECT_EQ(lines.size(), 1U + 26 + 2);
  for (const std::string& line : lines) EXPECT_LE(width_of(line), 80U) << line;
}

TEST(PlanTextTest, ManyRanksAreACharacterEach) {
  EmbeddingPlanOptions options;
  options.data_parallel_threshold = 160;
  options.row_slice_threshold = 19 * 16'000;
  const auto lines = lines_of(picture(plan_of(20, 20, options)));
  ASSERT_EQ(lines.size(), 1U + 20 + 2 + 1);
  EXPECT_EQ(lines[1], "table0   " + std::string(20, 'W'));
  EXPECT_EQ(lines[20], "table19  " + std::string(20, 'R'));
  EXPECT_PRED2(contains, lines[18], "C") << "halved, so that 18 tables are enough";
}

TEST(PlanTextTest, ThousandsOfRanksAndTablesAreFolded) {
  EmbeddingPlanOptions options;
  options.row_slice_threshold = 15'000'000;
  options.data_parallel_threshold = 160;
  const EmbeddingPlan plan = plan_of(1000, 4096, options);
  const std::string drawn = picture(plan), told = to_string(plan);
  EXPECT_PRED2(contains, drawn, "... 966 more tables");
  EXPECT_PRED2(contains, drawn, "ranks 0 to 4095, 64 to 64 per character");
  for (const std::string& line : lines_of(drawn)) EXPECT_LE(width_of(line), 110U) << line;
  EXPECT_EQ(lines_of(drawn).size(), 1U + 35 + 2 + 1);
  EXPECT_PRED2(contains, told, "... 4,062 more ranks of ");
  EXPECT_LT(lines_of(told).size(), 90U);
}

TEST(PlanTextTest, UnevenRunsOfRanksAreAllDrawn) {
  EmbeddingPlanOptions options;
  options.row_slice_threshold = 1;
  const auto lines = lines_of(picture(plan_of(1, 100, options)));
  std::string cells;
  for (int i = 0; i < 5; ++i) cells += "█";  // 10 rows on the ranks 0 to 9, two to a character
  EXPECT_EQ(lines[1].substr(0, 8 + cells.size()), "table0  " + cells);
}

TEST(PlanTextTest, TimesHaveOneToThreeDigitsBeforeThePoint) {
  EXPECT_EQ(time_text(0.5e-6), "0.5 us");
  EXPECT_EQ(time_text(999e-6), "999.0 us");
  EXPECT_EQ(time_text(0.99999e-3), "1.0 ms");
  EXPECT_EQ(time_text(2.5), "2.50 s");
}

}  // namespace
}  // namespace shardwise::plan_text_test
