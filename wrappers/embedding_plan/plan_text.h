// wrappers/embedding_plan/plan_text.h: a plan of embedding tables as text and as a picture. Pure.
//
//   3 tables on 2 ranks, memory_optimized: a step takes 412 us on rank 0, the most loaded; none takes less than 398 us (ratio 1.04)
//   table  shape      dtype    combiner  treatment       ranks   bytes  why
//   users  [1000, 8]  float32  sum       table-parallel  0      32,000  ...
//
//          rank 0       rank 1
//   users  columns 0:8  ·
//   items  rows 0:3     rows 3:5
//   days   whole        whole
#pragma once

#include "wrappers/embedding_plan/embedding_plan.h"

#include <string>

namespace shardwise {

/// "412 us": the unit that leaves one to three digits before the point.
std::string time_text(double seconds);

/// A line with the step's time, the bound and the bytes; a line per table with the reason; a line per rank. If there are many lines, one line
/// replaces the middle ones.
std::string to_string(const EmbeddingPlan& plan);

/// A grid with tables as rows and ranks as columns: the part of each table on each rank. Below it, each rank's bytes and seconds as bars. A cell is
/// text up to 8 ranks, a character up to 64 ranks, and beyond that a shade for a run of ranks, darker if more of them have a part.
std::string picture(const EmbeddingPlan& plan);

}  // namespace shardwise
