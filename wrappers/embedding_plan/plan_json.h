// wrappers/embedding_plan/plan_json.h: plans and tables as JSON. Pure.
//
//   {"format": "shardwise.embedding_plan", "version": 1, "n_ranks": 2, "options": {"strategy": "basic", ...},
//    "tables": [{"name": "users", "n_rows": 1000, "n_columns": 64, "dtype": "float32", "combiner": "sum", ...}],
//    "plans": [{"treatment": "table-parallel", "slices": [{"rank": 1, "columns": [0, 64]}], "reason": "..."}]}
//
// Derived values (groups, offsets, loads, the bound, slices of replicas and of balanced rows) are not stored but computed on reading.
#pragma once

#include "wrappers/embedding_plan/embedding_plan.h"

#include <string>
#include <string_view>
#include <vector>

namespace shardwise {

/// A plan that is read back equals the one that was written.
std::string to_json(const EmbeddingPlan& plan);
/// Throws: c10::ValueError for anything that to_json() would not have written, naming the place in it: "$.tables[3].n_rows".
EmbeddingPlan embedding_plan_from_json(std::string_view text);

/// Reads a list of tables, or an object with such a list as "tables", for example a plan. All fields but name, n_rows and n_columns may be left out.
std::vector<TableConfig> tables_from_json(std::string_view text);

/// Replaces the file atomically: after a failure it still has the old content. Throws: c10::ValueError naming the file and the reason.
void save_embedding_plan(const EmbeddingPlan& plan, const std::string& path);
EmbeddingPlan load_embedding_plan(const std::string& path);

}  // namespace shardwise
