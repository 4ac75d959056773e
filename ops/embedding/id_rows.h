// ops/embedding/id_rows.h: raw 64-bit ids to rows of a table, on one rank; no messages.
//
// Each id belongs to one bucket of rows (kernels/id_map.h). A new id takes the bucket's first free row, else the row that was used
// longest ago. All tensors are on the CPU.
#pragma once

#include "kernels/id_map.h"
#include "placements/box.h"

#include <ATen/core/Tensor.h>

#include <vector>

namespace shardwise {

/// What is known of each of a rank's rows, int64 [rows].
struct IdRowState {
  at::Tensor ids;        // meaningless in rows that were never used
  at::Tensor last_used;  // a step; -1: never
  at::Tensor counts;     // how often the row's id came
};

/// Ids, each once, and how often each came: int64 [n].
struct IdUses {
  at::Tensor ids;
  at::Tensor counts;
};

/// Each of `ids` [m] once, as they come first, and where each of the m is among them. All int64.
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

/// Which rows the ids of a step get, before anything is written.
struct IdAssignment {
  std::vector<int64_t> rows;       // per id, of this rank: counted from its first
  std::vector<int64_t> newcomers;  // places of ids that had no row
  std::vector<Reassigned> reassigned;

  /// A bucket to which more of these ids belong than it has rows: the one with most ids. -1: there is none, and only then the rest holds.
  int64_t full_bucket = -1;
  int64_t n_ids_there = 0;
};

/// The map of the rows of whole buckets. The state belongs to the caller, and is read where it is given.
class IdRows {
 public:
  /// `own`: the buckets of this rank. `default_row`: a row of the table that no id gets.
  IdRows(kernels::IdBuckets buckets, Interval own, int64_t default_row);

  /// Rows of the table.
  Interval rows() const { return rows_; }

  /// Builds the map from the state. Returns the first row whose id does not belong there, or is in two rows; -1: none.
  int64_t read(const IdRowState& state);

  /// The table's row of each id, `missing` for ids that have none.
  at::Tensor find(const IdRowState& state, const at::Tensor& ids, int64_t missing) const;

  /// Rows for ids, each once. Their order does not matter, and rows of these ids are not taken from them.
  /// Cost: a search per id, and a pass over the rows of each bucket that gets new ids.
  IdAssignment assign(const IdRowState& state, const at::Tensor& ids) const;
  /// Writes it. Pre: nothing has been written since assign().
  void commit(const IdRowState& state, const IdUses& uses, int64_t step, const IdAssignment& assignment);
  /// How many ids a bucket can hold.
  int64_t capacity(int64_t bucket) const;

 private:
  kernels::IdMap map(const IdRowState& state) const;
  /// A bucket that gets new ids.
  struct Arrival {
    int64_t bucket;
    int64_t begin;              // its new ids, among all that are new and in order
    std::vector<int64_t> kept;  // rows of known ids of this step
  };
  /// The least recently used rows of the bucket, of those that are not kept.
  std::vector<int64_t> oldest_rows(const IdRowState& state, Arrival& arrival, int64_t n) const;

  kernels::IdBuckets buckets_;
  Interval own_;
  Interval rows_;
  int64_t default_row_;
  mutable std::vector<int64_t> slots_;
  mutable std::vector<int32_t> arrival_of_;  // per bucket of this rank; -1 but within assign()
};

/// Rows of [0, n_rows) by the ids' hashes, int64 of the ids' shape. Ids may share rows. Cost: one pass.
at::Tensor hashed_rows(const at::Tensor& ids, int64_t n_rows, int64_t seed);

/// What rows are filled with.
struct RowFill {
  enum class Kind : uint8_t { kConstant, kUniform, kNormal };
  Kind kind = Kind::kConstant;
  double scale = 0;  // the constant; uniform in [-scale, scale); the standard deviation
  int64_t seed = 0;
};

/// The columns [begin, end) of the rows of these ids, [ids, columns]: a function of id, column and seed, so that all ranks and layouts get
/// the same. Normal numbers by Box and Muller (A Note on the Generation of Random Normal Deviates, 1958).
at::Tensor filled_rows(c10::ArrayRef<int64_t> ids, Interval columns, const RowFill& fill,
                       const at::TensorOptions& options);

}  // namespace shardwise
