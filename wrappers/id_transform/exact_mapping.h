// wrappers/id_transform/exact_mapping.h: raw 64-bit ids to rows of a table of fixed height, with a row of its own for each id, over the ranks of a
// mesh.
//
//   ExactMapping mapping({.n_rows = 1000}, mesh);
//   const IdMappingState state = mapping.new_state();                  // distributed by rows: saved and resharded like the table
//   at::Tensor rows = mapping.transform(state, raw_ids, true);         // [ids] -> [ids]: rows for at::embedding
//   mapping.reset_rows(table, {.values = Fill::kNormal, .scale = 0.01});    // rows that were reassigned to another id
//
// The hash of an id determines its bucket, one of a fixed number of row intervals, independent of the number of ranks. A rank owns whole buckets, so
// a known id keeps its row when the state is loaded on another number of ranks. In a bucket without free rows a new id takes the least recently used
// row.
#pragma once

#include "runtime/api/dtensor.h"
#include "runtime/comm/agreement.h"
#include "wrappers/id_transform/id_exchange.h"

#include <optional>
#include <vector>

namespace shardwise {

/// All int64 and on the CPU: [n_rows] each, placed as ExactMapping::placements(); `header` [4], replicated: steps so far, n_rows, n_buckets,
/// default_row.
struct IdMappingState {
  at::Tensor ids;
  at::Tensor last_used;
  at::Tensor counts;
  at::Tensor header;
};

struct ExactMappingOptions {
  int64_t n_rows = 0;
  /// The row of an id depends on it. 0: one bucket per 256 rows, at least one.
  int64_t n_buckets = 0;
  /// The row that is never assigned to an id: unknown ids get it if nothing is inserted.
  int64_t default_row = 0;
};

class ExactMapping {
 public:
  /// `mesh`: 1-D. Throws: c10::ValueError for other meshes and for options out of range.
  ExactMapping(const ExactMappingOptions& options, const MeshPtr& mesh);

  const ExactMappingOptions& options() const { return options_; }
  const MeshPtr& mesh() const { return mesh_; }
  /// Rows are split by whole buckets, as evenly as these allow. If a table has these placements, each row is on the rank that knows its id, and
  /// reset_rows() sends nothing.
  Placements placements() const;
  /// A state in which no id has a row.
  IdMappingState new_state() const;

  /// The row of each id. Ids: integers of any shape, either this rank's own ids as a plain tensor, or a DTensor on the mesh. The result is int64 with
  /// the same shape and placements. If `assigns`, new ids get rows, uses are counted, and this call is one step; else the state does not change and
  /// unknown ids get the default row.
  ///
  /// The result depends on the ids of all ranks together, not on their distribution over ranks. Collective over the mesh: three exchanges. Each
  /// distinct id of a rank is sent once to its owner, with its count, and the row comes back.
  /// Throws: c10::ValueError on a non-member. Alike on all ranks: c10::TypeError for ids that are no integers; c10::ValueError for a state of other
  /// options, or with an id in a row where it cannot be, for ranks that call at different steps, and for a step with more ids of one bucket than the
  /// bucket has rows. The state does not change then.
  at::Tensor transform(const IdMappingState& state, const at::Tensor& ids, bool assigns);

  /// The rows of this rank's buckets that the last step gave to another id.
  const std::vector<Reassigned>& reassigned() const { return reassigned_; }
  /// The number of reassigned rows on all ranks.
  int64_t n_reassigned() const { return n_reassigned_; }

  /// Fills the reassigned rows of `tensor`, [n_rows, ...] in any layout: a table, or its optimizer's state. Collective over the mesh if some rank
  /// holds rows whose ids another rank knows: one exchange, at the first call after a step that reassigned rows.
  /// Throws: c10::ValueError for a tensor of another height, a Partial one, one on another mesh, and random numbers for more than two dims.
  void reset_rows(const at::Tensor& tensor, const RowFill& fill);

 private:
  static IdRowState own(const IdMappingState& state);
  /// Throws: c10::ValueError for a state of another layout.
  void check_layout(const IdMappingState& state) const;
  /// Reads the state if it was written to since the last call. Throws: c10::ValueError for a state of other options, and for a corrupt one.
  void refresh(const IdMappingState& state);
  /// `error`: of this rank, which all ranks throw.
  void check_headers(const NumbersByMember& headers, const RankError& error) const;
  void check_verdicts(const NumbersByMember& verdicts) const;
  /// True if, under `spec`, each rank holds only rows whose ids it knows.
  bool holds_own_rows(const Spec& spec) const;
  const std::vector<Reassigned>& reassigned_everywhere();

  ExactMappingOptions options_;
  MeshPtr mesh_;
  IdOwners owners_;
  IdRows rows_;
  std::vector<uint64_t> versions_;  // versions of the state that rows_ has read
  std::vector<Reassigned> reassigned_;
  std::vector<int64_t> n_reassigned_of_;  // per member of the group
  int64_t n_reassigned_ = 0;
  std::optional<std::vector<Reassigned>> everywhere_;  // of all ranks, once requested
};

}  // namespace shardwise
