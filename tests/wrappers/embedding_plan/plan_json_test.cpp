#include "wrappers/embedding_plan/plan_json.h"

#include <c10/util/Exception.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <filesystem>
#include <fstream>

namespace shardwise::plan_json_test {
namespace {

EmbeddingPlan example(EmbeddingStrategy strategy) {
  std::vector<TableConfig> tables{{"users \"é\"", 1000, 64, "float16", Combiner::kMean, 1.1, 0.3},
                                  {"items", 10, 4},
                                  {"days", 7, 4, "float32", Combiner::kNone, 1.0 / 3, 1.05},
                                  {"wide", 100, 17}};
  EmbeddingPlanOptions options;
  options.strategy = strategy;
  if (strategy != EmbeddingStrategy::kCostBalanced) {
    options.data_parallel_threshold = 30;
    options.row_slice_threshold = 50'000;
    options.column_slice_threshold = 600;
  }
  options.memory_per_rank = int64_t{1} << 40;
  options.state_bytes_per_row = 4;
  options.mesh_shape = {3, 1};
  options.links = {{0.1, 12.3}, {2, 1e2}};
  options.machine.ns_per_row = 1e-3 / 3;
  return plan_embeddings(tables, 3, options);
}

std::string replaced(std::string text, const std::string& what, const std::string& by) {
  const size_t at = text.find(what);
  EXPECT_NE(at, std::string::npos) << what;
  return at == std::string::npos ? text : text.replace(at, what.size(), by);
}

std::string words_of_error(const std::string& text) {
  try {
    embedding_plan_from_json(text);
  } catch (const c10::ValueError& error) {
    return error.msg();
  }
  return "no error";
}

bool contains(const std::string& text, const std::string& words) { return text.find(words) != std::string::npos; }

TEST(PlanJsonTest, RoundTripIsExact) {
  for (const auto strategy : {EmbeddingStrategy::kBasic, EmbeddingStrategy::kMemoryBalanced,
                              EmbeddingStrategy::kMemoryOptimized, EmbeddingStrategy::kCostBalanced}) {
    const EmbeddingPlan plan = example(strategy);
    const EmbeddingPlan back = embedding_plan_from_json(to_json(plan));
    EXPECT_EQ(back, plan) << to_string(strategy);
    EXPECT_EQ(to_json(back), to_json(plan));
  }
}

TEST(PlanJsonTest, ForeignSlicesAreKept) {
  TablePlan rows{Treatment::kRowParallel, {{0, 1, {0, 9}, {0, 4}}, {0, 0, {9, 10}, {0, 4}}}, "theirs"};
  const EmbeddingPlan plan = arrange_embeddings({{"t", 10, 4}}, 2, {}, {rows});
  EXPECT_EQ(embedding_plan_from_json(to_json(plan)), plan);
  EXPECT_EQ(plan.table_plans[0].slices[0].rank, 1);
}

TEST(PlanJsonTest, WhatIsNoPlanIsAnErrorThatNamesThePlace) {
  const std::string good = to_json(example(EmbeddingStrategy::kBasic));
  // what is replaced, by what, words of the error
  const std::vector<std::array<std::string, 3>> cases{
      {"\"n_ranks\": 3", "\"n_ranks\": 3.5", "$.n_ranks is 3.5: a whole number is needed"},
      {"\"n_ranks\": 3", "\"n_ranks\": 0", "0 ranks"},
      {"\"n_ranks\": 3", "\"ranks\": 3", "$ has \"ranks\", which is not known"},
      {"\"n_rows\": 10,", "\"n_rows\": \"x\",", "$.tables[1].n_rows is \"x\": a whole number is needed"},
      {"\"n_rows\": 10,", "\"n_rows\": 18446744073709551615,", "$.tables[1].n_rows"},
      {"\"n_rows\": 10,", "", "$.tables[1] has no \"n_rows\""},
      {"\"n_rows\": 10,", "\"n_rows\": 10, \"rows\": 3,", "$.tables[1] has \"rows\", which is not known"},
      {"\"dtype\": \"float16\"", "\"dtype\": \"half\"", "$.tables[0].dtype: [TableConfig] dtype \"half\""},
      {"\"combiner\": \"mean\"", "\"combiner\": \"median\"", "$.tables[0].combiner: [TableConfig] combiner \"median\""},
      {"\"strategy\": \"basic\"", "\"strategy\": \"best\"", "$.options.strategy: [plan_embeddings] strategy \"best\""},
      {"\"treatment\": \"replicated\"", "\"treatment\": 5", "$.plans[2].treatment is 5: a text is needed"},
      {"\"rank\": 1", "\"rank\": 3", "on rank 3"},
      {"\"version\": 1", "\"version\": 2", "$.version is 2: 1 is needed"},
      {"shardwise.embedding_plan", "another.plan", "$.format is \"another.plan\""},
      {"\"tables\": [", "\"tables\": [[],", "$.tables[0] is []: an object is needed"},
      {"\"batch_per_rank\": 1024", "\"batch_per_rank\": -1", "batch_per_rank is -1"},
  };
  for (const auto& [what, by, words] : cases) EXPECT_PRED2(contains, words_of_error(replaced(good, what, by)), words);
  EXPECT_PRED2(contains, words_of_error("{}"), "$ has no \"format\"");
  EXPECT_PRED2(contains, words_of_error("[1, 2]"), "$ is [1,2]: an object is needed");
  EXPECT_PRED2(contains, words_of_error(""), "line 1");
  EXPECT_PRED2(contains, words_of_error("{\n\"format\": oops}"), "line 2, byte 13: this is no JSON");
}

TEST(PlanJsonTest, EveryTruncationIsAnError) {
  const std::string good = to_json(example(EmbeddingStrategy::kBasic));
  for (size_t n = 0; n + 2 < good.size(); n += 7) EXPECT_NE(words_of_error(good.substr(0, n)), "no error") << n;
}

TEST(PlanJsonTest, TablesAreReadFromListsAndPlans) {
  const EmbeddingPlan plan = example(EmbeddingStrategy::kBasic);
  EXPECT_EQ(tables_from_json(to_json(plan)), plan.tables);
  const auto tables = tables_from_json(R"([{"name": "t", "n_rows": 5, "n_columns": 2, "skew": 1}])");
  ASSERT_EQ(tables.size(), 1U);
  EXPECT_EQ(tables[0], (TableConfig{"t", 5, 2, "float32", Combiner::kSum, 1, 1}));
  EXPECT_THROW(tables_from_json("[]"), c10::ValueError);
}

TEST(PlanJsonTest, AFileIsReplacedAsAWhole) {
  const std::string folder = testing::TempDir() + "shardwise_plan_json_test", path = folder + "/plan.json";
  std::filesystem::remove_all(folder);
  std::filesystem::create_directory(folder);
  const EmbeddingPlan plan = example(EmbeddingStrategy::kBasic);
  save_embedding_plan(plan, path);
  EXPECT_EQ(load_embedding_plan(path), plan);
  EXPECT_FALSE(std::filesystem::exists(path + ".part"));
  std::remove(path.c_str());
  EXPECT_THROW(load_embedding_plan(path), c10::ValueError);
  EXPECT_THROW(save_embedding_plan(plan, "/nowhere/at/all.json"), c10::ValueError);
  const std::string link = path + ".link";
  std::filesystem::create_symlink(path, link);
  save_embedding_plan(plan, link);
  EXPECT_TRUE(std::filesystem::is_symlink(link));
  EXPECT_EQ(load_embedding_plan(path), plan);
  std::remove(link.c_str());
  std::remove(path.c_str());
  save_embedding_plan(plan, "/dev/null");  // which stays what it is
  EXPECT_TRUE(std::filesystem::is_character_file("/dev/null"));
  EXPECT_FALSE(std::filesystem::exists("/dev/null.part"));
  if (std::ofstream("/dev/full")) {  // a full disk
    EXPECT_THROW(save_embedding_plan(plan, "/dev/full"), c10::ValueError);
    std::error_code error;
    std::filesystem::create_symlink("/dev/full", path + ".part", error);
    if (!error) {
      EXPECT_THROW(save_embedding_plan(plan, path), c10::ValueError);
      EXPECT_FALSE(std::filesystem::exists(path));
    }
  }
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace shardwise::plan_json_test
