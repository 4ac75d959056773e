// wrappers/embedding_plan/table_config.h: one embedding table as its planner knows it. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace shardwise {

/// What becomes of the rows of one sample: all of them, or one row.
enum class Combiner : uint8_t { kNone, kSum, kMean, kMax };

/// "none", "sum", "mean", "max".
std::string_view to_string(Combiner combiner);
/// The reverse. Throws: c10::ValueError naming the four words.
Combiner combiner_from_string(std::string_view name);

/// One table: [n_rows, n_columns].
struct TableConfig {
  std::string name;
  int64_t n_rows = 0;
  int64_t n_columns = 0;
  std::string dtype = "float32";  // as torch names it, without "torch."
  Combiner combiner = Combiner::kSum;
  double ids_per_sample = 1;  // of all its inputs together, on average
  double skew = 0;            // of ids: the exponent of Zipf's law, row 0 the most frequent; 0: uniform

  int64_t n_elements() const { return n_rows * n_columns; }
  bool operator==(const TableConfig&) const = default;
};

/// Bytes of one element of a dtype as torch names it. Throws: c10::ValueError naming the dtypes that tables may have.
int64_t element_bytes(std::string_view dtype);

/// Throws: c10::ValueError naming the table, for no table at all, names that are empty or come twice, fewer rows or columns than
/// one, more than 2^50 elements in all, unknown dtypes, and numbers of ids or skews that are no such thing.
void check_tables(const std::vector<TableConfig>& tables);

}  // namespace shardwise
