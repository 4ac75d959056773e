#include "wrappers/embedding_plan/table_config.h"

#include "text/check.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <unordered_set>
#include <utility>

namespace shardwise {
namespace {

constexpr std::array<std::string_view, 4> kCombiners{"none", "sum", "mean", "max"};  // in the order of the enum

constexpr std::array<std::pair<std::string_view, int64_t>, 6> kDtypes{
    {{"float32", 4}, {"float64", 8}, {"float16", 2}, {"bfloat16", 2}, {"int8", 1}, {"uint8", 1}}};

constexpr int64_t kMaxElements = int64_t{1} << 50;  // their bytes, with optimizer state, fit in 64 bits
constexpr double kMaxIdsPerSample = 1e9;

void check_table(const TableConfig& table) {
  TORCH_CHECK_VALUE(!table.name.empty(), "[plan_embeddings] a table has an empty name. Give each table a name.");
  SW_CHECK_VALUE(table.n_rows > 0 && table.n_columns > 0,
                 "[plan_embeddings] table \"{}\" is [{}, {}]: it has no elements. Give at least 1 row and 1 column.",
                 table.name, table.n_rows, table.n_columns);
  SW_CHECK_VALUE(table.n_rows <= kMaxElements / table.n_columns,
                 "[plan_embeddings] table \"{}\" is [{}, {}]: more than {} elements. Give a smaller one.", table.name,
                 table.n_rows, table.n_columns, kMaxElements);
  SW_CHECK_VALUE(table.ids_per_sample > 0 && table.ids_per_sample <= kMaxIdsPerSample,
                 "[plan_embeddings] table \"{}\" has {} ids per sample: a number above 0 and at most {} is needed.",
                 table.name, table.ids_per_sample, kMaxIdsPerSample);
  SW_CHECK_VALUE(std::isfinite(table.skew) && table.skew >= 0 && table.skew <= 16,
                 "[plan_embeddings] table \"{}\" has skew {}: Zipf's exponent is in [0, 16], 0 for uniform ids.",
                 table.name, table.skew);
  element_bytes(table.dtype);
}

}  // namespace

std::string_view to_string(Combiner combiner) { return kCombiners[static_cast<size_t>(combiner)]; }

Combiner combiner_from_string(std::string_view name) {
  const auto* const found = std::ranges::find(kCombiners, name);
  SW_CHECK_VALUE(found != kCombiners.end(),
                 "[TableConfig] combiner \"{}\" is not known. Use \"none\", \"sum\", \"mean\" or \"max\".", name);
  return static_cast<Combiner>(found - kCombiners.begin());
}

int64_t element_bytes(std::string_view dtype) {
  for (const auto& [name, n_bytes] : kDtypes)
    if (name == dtype) return n_bytes;
  SW_CHECK_VALUE(
      false,
      "[TableConfig] dtype \"{}\" is not supported for tables. Use float32, float64, float16, bfloat16, int8 or uint8.",
      dtype);
}

void check_tables(const std::vector<TableConfig>& tables) {
  TORCH_CHECK_VALUE(!tables.empty(), "[plan_embeddings] there are no tables to place. Give at least one.");
  std::unordered_set<std::string_view> names;
  int64_t n_elements = 0;
  for (const TableConfig& table : tables) {
    check_table(table);
    SW_CHECK_VALUE(names.insert(table.name).second,
                   "[plan_embeddings] two tables have the name \"{}\". Give each a name of its own.", table.name);
    n_elements += table.n_elements();
    SW_CHECK_VALUE(n_elements <= kMaxElements,
                   "[plan_embeddings] the tables up to \"{}\" have {} elements together. At most {} can be planned. "
                   "Plan fewer at a time.",
                   table.name, n_elements, kMaxElements);
  }
}

}  // namespace shardwise
