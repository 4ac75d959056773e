// wrappers/embedding_plan/table_config.h: one embedding table as its planner knows it. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace shardwise {

/// How the rows of one sample are combined: kNone keeps all rows, the others give one row.
enum class Combiner : uint8_t { kNone, kSum, kMean, kMax };

/// "none", "sum", "mean", "max".
std::string_view to_string(Combiner combiner);
/// The reverse. Throws: c10::ValueError listing the four names.
Combiner combiner_from_string(std::string_view name);

/// One table: [n_rows, n_columns].
struct TableConfig {
  std::string name;
  int64_t n_rows = 0;
  int64_t n_columns = 0;
  std::string dtype = "float32";  // as torch names it, without "torch."
  Combiner combiner = Combiner::kSum;
  double ids_per_sample = 1;  // for all inputs of the table together, on average
  double skew = 0;            // exponent of Zipf's law for ids, row 0 the most frequent; 0: uniform

  int64_t n_elements() const { return n_rows * n_columns; }
  bool operator==(const TableConfig&) const = default;
};

/// Bytes of one element of a dtype as torch names it. Throws: c10::ValueError naming the dtypes that tables may have.
int64_t element_bytes(std::string_view dtype);

/// Throws: c10::ValueError naming the table, for no table at all, names that are empty or occur twice, fewer than one row or column, more than 2^50
/// elements in all, unknown dtypes, and invalid numbers of ids or skews.
void check_tables(const std::vector<TableConfig>& tables);

}  // namespace shardwise
