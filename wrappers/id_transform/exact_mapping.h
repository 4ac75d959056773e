// wrappers/id_transform/exact_mapping.h: raw 64-bit ids to rows of a table of fixed height, each id its own row, over the ranks of a mesh.
//
//   ExactMapping mapping({.n_rows = 1000}, mesh);
//   const IdMappingState state = mapping.new_state();                  // distributed by rows: saved and resharded as the table
//   at::Tensor rows = mapping.transform(state, raw_ids, true);         // [ids] -> [ids]: rows for at::embedding
//   mapping.reset_rows(table, {.kind = RowFill::Kind::kNormal, .scale = 0.01});    // those that passed to another id
//
// An id's hash names its bucket, one of a fixed number of runs of rows, whatever the number of ranks; a rank owns whole buckets. So a known
// id keeps its row when the state is loaded by other ranks. In a bucket without free rows a new id takes the row used longest ago.
#pragma once

#include "runtime/api/dtensor.h"
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
  /// Part of what an id's row depends on. 0: one per 256 rows, at least one.
  int64_t n_buckets = 0;
  /// The row that no id gets: unknown ids are sent there where nothing is inserted.
  int64_t default_row = 0;
};

class ExactMapping {
 public:
  /// `mesh`: 1-D. Throws: c10::ValueError for other meshes and for options out of range.
  ExactMapping(const ExactMappingOptions& options, const MeshPtr& mesh);

  const ExactMappingOptions& options() const { return options_; }
  const MeshPtr& mesh() const { return mesh_; }
  /// Rows by whole buckets, as even as these allow. A table that is placed so has each row where its id is known: reset_rows() then sends
  /// nothing.
  Placements placements() const;
  /// In which no id has a row.
  IdMappingState new_state() const;

  /// The row of each id. Ids: integers of any shape, this rank's own in a plain tensor, or a DTensor on the mesh; the result is of the same
  /// shape, placed likewise, int64. Where `assigns`, new ids get rows, uses are counted, and the step ends with this call; else the state
  /// stays and unknown ids get the default row.
  ///
  /// The result depends on all ranks' ids together, not on which rank has which. Collective over the mesh: three exchanges, in which each of
  /// a rank's ids travels once to its owner, with its count, and the row back.
  /// Throws: c10::ValueError on a non-member. Alike on all ranks: c10::TypeError for ids that are no integers; c10::ValueError for a state of other options, or in which an
  /// id is where it cannot be, for ranks that call at different steps, and where a step brings more ids of one bucket than it has rows.
  /// The state is then as before.
  at::Tensor transform(const IdMappingState& state, const at::Tensor& ids, bool assigns);

  /// The rows of this rank's buckets that the last step gave to another id.
  const std::vector<Reassigned>& reassigned() const { return reassigned_; }
  /// Their number on all ranks.
  int64_t n_reassigned() const { return n_reassigned_; }

  /// Fills those rows of `tensor`, [n_rows, ...] in any layout: a table, or its optimizer's state. Collective over the mesh where some rank
  /// holds rows whose ids another one knows: one exchange, the first time after a step that reassigned rows.
  /// Throws: c10::ValueError for a tensor of another height, a Partial one, one on another mesh, and random numbers for more than two dims.
  void reset_rows(const at::Tensor& tensor, const RowFill& fill);

 private:
  struct Problem;

  static IdRowState own(const IdMappingState& state);
  /// Throws: c10::ValueError for a state of another layout.
  void check_layout(const IdMappingState& state) const;
  /// Reads what was loaded since the last call. Returns what is wrong.
  Problem refresh(const IdMappingState& state);
  void check_headers(const NumbersByMember& headers, const IdMappingState& state) const;
  void check_verdicts(const NumbersByMember& verdicts) const;
  /// Whether each rank holds of `spec` only rows whose ids it knows.
  bool holds_own_rows(const Spec& spec) const;
  const std::vector<Reassigned>& reassigned_everywhere();

  ExactMappingOptions options_;
  MeshPtr mesh_;
  IdOwners owners_;
  IdRows rows_;
  std::vector<uint64_t> versions_;  // of the state that rows_ has read
  std::vector<Reassigned> reassigned_;
  std::vector<int64_t> n_reassigned_of_;  // per member of the group
  int64_t n_reassigned_ = 0;
  std::optional<std::vector<Reassigned>> everywhere_;  // all ranks', once they were asked for
};

}  // namespace shardwise
