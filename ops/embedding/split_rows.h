// ops/embedding/split_rows.h: sums over whole rows (optimizers' sums and norms) for tables whose rows are split among pieces.
//
// Row-wise optimizers keep one number per row. If Shard(1) shards columns, every rank that shares a row keeps that number. If the table is in pieces,
// the first piece of a row, by rank, keeps it:
//
//   pieces   rows [0, 4): columns [0, 3) on rank 0, [3, 6) on rank 1; rows [4, 9) on rank 1
//   numbers  rows [0, 4) on rank 0, rows [4, 9) on rank 1
#pragma once

#include "ops/embedding/row_exchange.h"
#include "ops/embedding/row_optimizer.h"

namespace shardwise {

/// Throws: c10::TypeError and c10::ValueError, which name `op`, unless `table` is a floating 2-D DTensor without Partial.
void check_table(const char* op, const at::Tensor& table);

/// True if some piece has only a part of the columns of its rows. Equal on all ranks.
bool splits_rows(const Spec& table);

/// Reduces numbers per row over all pieces that have a part of the row. `numbers`: [rows of the box, n] for each of this rank's boxes. `reduce`: kSum
/// or kMin. Collective over the mesh's members if rows are split.
void reduce_split_rows(const Spec& table, std::vector<at::Tensor>& numbers, Reduce reduce);

/// The number of a row of the table for which some rank has a number that is not finite; the table's row count if there is no such row. `numbers`:
/// [rows, n] for each of this rank's pieces; pieces without columns do not count. Collective over the mesh's members.
int64_t first_unbounded_row(const Spec& table, const std::vector<at::Tensor>& numbers);

/// The placements of one number per row of `table`.
Placements placements_of_rows(const Spec& table);

/// True if a step of `optimizer` needs sums over rows that are split among pieces, and therefore messages. Equal on all ranks.
bool needs_whole_rows(const RowOptimizer& optimizer, const Spec& table);

/// Updates each of this rank's boxes with the gradients of its groups; `pieces` are the boxes' rows. If needs_whole_rows(), the ranks that share a
/// row named by groups exchange a float64 per row (two for a table in pieces: the row's number too), and two more for LAMB. This is collective over
/// the mesh's members. Other rows need no message.
/// Pre: begin_step(); if one piece of a row has a group for it, so have all pieces of that row.
void update_boxes(const RowOptimizer& optimizer, const Spec& table, c10::ArrayRef<at::Tensor> pieces,
                  c10::ArrayRef<BoxGroups> boxes);

}  // namespace shardwise
