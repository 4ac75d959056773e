// ops/embedding/split_rows.h: what is computed of whole rows, on tables whose rows are split among pieces: optimizers' sums and norms.
//
// Row-wise optimizers keep one number per row. Where columns are sharded by Shard(1) the ranks that share a row each keep that number.
// Of a table in pieces the first piece of a row, by rank, keeps it:
//
//   pieces   rows [0, 4): columns [0, 3) on rank 0, [3, 6) on rank 1; rows [4, 9) on rank 1
//   numbers  rows [0, 4) on rank 0, rows [4, 9) on rank 1
#pragma once

#include "ops/embedding/row_exchange.h"
#include "ops/embedding/row_optimizer.h"

namespace shardwise {

/// Throws: c10::TypeError and c10::ValueError, which name `op`, for what is no table of numbers whose rows are whole somewhere.
void check_table(const char* op, const at::Tensor& table);

/// True where some piece has a part of the columns of its rows. The same on all ranks.
bool splits_rows(const Spec& table);

/// Reduces numbers of all rows over the pieces that have parts of the row: `numbers` [rows of the box, n], of each of this rank's boxes.
/// `reduce`: kSum or kMin. Collective over the mesh's members where rows are split.
void reduce_split_rows(const Spec& table, std::vector<at::Tensor>& numbers, Reduce reduce);

/// The placements of one number per row of `table`.
Placements placements_of_rows(const Spec& table);

/// True where a step of `optimizer` needs sums over rows that are split among pieces, and so messages. The same on all ranks.
bool needs_whole_rows(const RowOptimizer& optimizer, const Spec& table);

/// Updates each of this rank's boxes with the gradients of its groups; `pieces` are the boxes' rows. Where the optimizer needs sums over
/// whole rows and pieces have parts of rows, the ranks that share named rows exchange a float64 per row (two of a table in pieces: with
/// the row's number), and LAMB's two more; collective over the mesh's members then. Other rows need no message.
/// Pre: begin_step(); pieces that share a row have groups of that row all or none.
void update_boxes(const RowOptimizer& optimizer, const Spec& table, c10::ArrayRef<at::Tensor> pieces,
                  c10::ArrayRef<BoxGroups> boxes);

}  // namespace shardwise
