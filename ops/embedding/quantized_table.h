// ops/embedding/quantized_table.h: tables of 8-bit rows for inference. They take a quarter of the memory of float32 tables, and lookups send a
// quarter of the bytes.
//
//   const auto table = QuantizedTable::of(weight);                  // any layout
//   const at::Tensor rows = table->lookup(ids);                     // as at::embedding(weight, ids), up to the rounding
#pragma once

#include "runtime/api/dtensor.h"

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace shardwise {

class QuantizedTable {
 public:
  /// Rounds `table` row by row to 8 bits, as kernels/packed_rows.h says: an element changes by at most 1/510 of the range of its row. A row split
  /// among several pieces is rounded by the range of the whole row, so that every layout gives the same numbers. Collective over the mesh's members.
  /// Throws, on all ranks alike: c10::TypeError, c10::ValueError for a table that is not a 2-D floating DTensor or is Partial, for a `dtype` other
  /// than int8, and for a row with a number that is not finite.
  static std::shared_ptr<QuantizedTable> of(const at::Tensor& table, at::ScalarType dtype = at::kChar);

  /// A table of zeros, to be filled by load_state(). `dtype`: the dtype of lookup results. Sends nothing. Throws, on all ranks alike: c10::TypeError
  /// for a dtype that is not floating; c10::ValueError unless there are two sizes, and for Partial placements.
  static std::shared_ptr<QuantizedTable> zeros(c10::IntArrayRef sizes, const MeshPtr& mesh, Placements placements,
                                               at::ScalarType dtype = at::kFloat);

  /// The layout of the table, and the dtype of lookup results.
  const SpecPtr& spec() const { return spec_; }
  /// This rank's pieces, packed: int32 [rows, words].
  const std::vector<at::Tensor>& pieces() const { return pieces_; }
  /// Bytes of this rank's pieces.
  int64_t n_bytes() const;

  /// The rows of `ids` (DTensor of int64 or int32), with the layout and the messages of at::embedding() on dequantized(), with two exceptions: rows
  /// are sent packed, and rows of replicated ids are sent at once, so that the result is replicated. Not differentiable.
  at::Tensor lookup(const at::Tensor& ids) const;
  /// Pools bags by `mode` ("sum", "mean", "max"), with the arguments and layouts of torch.nn.functional.embedding_bag. Without `offsets` each row of
  /// `ids` [bags, n] is a bag.
  at::Tensor lookup_bags(const at::Tensor& ids, const std::optional<at::Tensor>& offsets, const std::string& mode,
                         const std::optional<at::Tensor>& per_sample_weights, bool include_last_offset,
                         std::optional<int64_t> padding_idx) const;

  /// The values that lookups read, as a table with the layout of the quantised one.
  at::Tensor dequantized() const;

  /// The tensors that a checkpoint keeps: "codes", uint8 [rows, columns], laid out as the table; "scales" and "offsets", float32 [rows], placed by
  /// placements_of_rows(): each number on one rank, or on replicas. In quantized_state.cpp.
  using State = std::map<std::string, at::Tensor>;
  State state() const;
  /// Loads such a state from any layout; no number is rounded again. Collective over the mesh's members: one number always, more if data moves or
  /// rows are split. Throws, on all ranks alike and before anything is taken: c10::ValueError, c10::TypeError for other names, shapes and dtypes, for
  /// Partial tensors, and for a row's scale or offset that is not finite.
  void load_state(const State& state);

 private:
  QuantizedTable() = default;

  SpecPtr spec_;
  std::vector<at::Tensor> pieces_;
};

}  // namespace shardwise
