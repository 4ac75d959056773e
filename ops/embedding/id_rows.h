// ops/embedding/id_rows.h: raw 64-bit ids to rows of a table, on one rank; no messages.
//
// Each id belongs to one bucket of rows (kernels/id_map.h). A new id takes the bucket's first unused row, or else its least recently used one. All
// tensors are on the CPU.
#pragma once

#include "kernels/id_map.h"
#include "placements/box.h"

#include <ATen/core/Tensor.h>

#include <vector>

namespace shardwise {

/// State of each of a rank's rows, int64 [rows].
struct IdRowState {
  at::Tensor ids;        // meaningless in rows that were never used
  at::Tensor last_used;  // a step; -1: never
  at::Tensor counts;     // how often the row's id occurred
};

/// Distinct ids and how often each occurred: int64 [n].
struct IdUses {
  at::Tensor ids;
  at::Tensor counts;
};

/// The distinct values of ids [m] in order of first occurrence, and the place of each of the m among them. All int64.
struct UniqueIds {
  IdUses uses;
  at::Tensor place_of;  // [m]
};
UniqueIds unique_ids(const at::Tensor& ids);

/// A row that passes from one id to another.
struct Reassigned {
  int64_t row;  // of the table
  int64_t id;   // the new one
};

/// The rows that the ids of a step get. Nothing is written yet.
struct IdAssignment {
  std::vector<int64_t> rows;       // one per id, counted from this rank's first row
  std::vector<int64_t> newcomers;  // places of the ids that had no row
  std::vector<Reassigned> reassigned;

  /// The bucket with most ids among those with more ids than rows; -1: no bucket overflows. The fields above are valid only if it is -1.
  int64_t full_bucket = -1;
  int64_t n_ids_there = 0;
};

/// Maps ids to the rows of whole buckets. The state belongs to the caller and is passed to each call that reads it.
class IdRows {
 public:
  /// `own`: the buckets of this rank. `default_row`: a row of the table that is never assigned to an id.
  IdRows(kernels::IdBuckets buckets, Interval own, int64_t default_row);

  /// Rows of the table.
  Interval rows() const { return rows_; }

  /// Builds the map from the state. Returns the first row whose id belongs to another bucket or is in two rows; -1: all rows are valid.
  int64_t read(const IdRowState& state);

  /// The table's row of each id; `missing` for an id without a row.
  at::Tensor find(const IdRowState& state, const at::Tensor& ids, int64_t missing) const;

  /// Assigns rows to distinct ids. The order of ids does not matter, and no id loses its row to another of these ids.
  /// Cost: a search per id, and a pass over the rows of each bucket that gets new ids.
  IdAssignment assign(const IdRowState& state, const at::Tensor& ids) const;
  /// Writes an assignment to the state. Pre: nothing has been written since assign().
  void commit(const IdRowState& state, const IdUses& uses, int64_t step, const IdAssignment& assignment);
  /// The number of ids that a bucket can hold.
  int64_t capacity(int64_t bucket) const;

 private:
  kernels::IdMap map(const IdRowState& state) const;
  /// A bucket that gets new ids.
  struct Arrival {
    int64_t bucket;
    int64_t begin;              // where its new ids begin in the sorted list of all new ids
    std::vector<int64_t> kept;  // rows of this step's ids that already have one
  };
  /// The `n` least recently used rows of the bucket, without kept ones.
  std::vector<int64_t> oldest_rows(const IdRowState& state, Arrival& arrival, int64_t n) const;

  kernels::IdBuckets buckets_;
  Interval own_;
  Interval rows_;
  int64_t default_row_;
  mutable std::vector<int64_t> slots_;
  mutable std::vector<int32_t> arrival_of_;  // per bucket of this rank; -1 except within assign()
};

enum class Fill : uint8_t { kConstant, kUniform, kNormal };

/// The values of new rows.
struct RowFill {
  Fill values = Fill::kConstant;
  double scale = 0;  // the constant; uniform in [-scale, scale); the standard deviation
  int64_t seed = 0;
};

/// The columns [begin, end) of new rows for these ids, [ids, columns]. Values are a function of id, column and seed, so they do not depend on ranks
/// and layouts. Normal numbers by Box and Muller (A Note on the Generation of Random Normal Deviates, 1958).
at::Tensor filled_rows(c10::ArrayRef<int64_t> ids, Interval columns, const RowFill& fill,
                       const at::TensorOptions& options);

}  // namespace shardwise
