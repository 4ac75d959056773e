// ops/embedding/quantized_table.h: tables of 8-bit rows for inference: a quarter of the memory of float32, and of the bytes that lookups
// send.
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
  /// Rounds `table` row by row to 8 bits, as kernels/packed_rows.h says: an element changes by at most 1/510 of the range of its row. Rows
  /// that lie in several pieces are rounded as whole ones, so that every layout gives the same numbers. Collective over the mesh's
  /// members. Throws, on all ranks alike: c10::TypeError, c10::ValueError for what is not a 2-D floating DTensor or is Partial, for another
  /// `dtype` than int8, and where a row has a number that is not finite.
  static std::shared_ptr<QuantizedTable> of(const at::Tensor& table, at::ScalarType dtype = at::kChar);

  /// A table whose numbers are all 0, to be loaded: `dtype` is that of what lookups give. Collective over nothing. Throws, on all ranks
  /// alike: c10::TypeError for another dtype than a floating one; c10::ValueError for other than two sizes, and Partial placements.
  static std::shared_ptr<QuantizedTable> zeros(c10::IntArrayRef sizes, const MeshPtr& mesh, Placements placements,
                                               at::ScalarType dtype = at::kFloat);

  /// The layout, and the dtype of what lookups give: those of the table.
  const SpecPtr& spec() const { return spec_; }
  /// This rank's pieces, packed: int32 [rows, words].
  const std::vector<at::Tensor>& pieces() const { return pieces_; }
  /// Bytes of this rank's pieces.
  int64_t n_bytes() const;

  /// The rows of `ids` (DTensor of int64 or int32), as at::embedding() of dequantized() lays them out and by its messages, except that
  /// rows travel packed, and those of replicated ids at once: the result is replicated, too. Not differentiable.
  at::Tensor lookup(const at::Tensor& ids) const;
  /// Sums, means or maxima ("sum", "mean", "max") of bags, with the arguments and layouts of torch.nn.functional.embedding_bag. Without
  /// `offsets` each row of `ids` [bags, n] is a bag.
  at::Tensor lookup_bags(const at::Tensor& ids, const std::optional<at::Tensor>& offsets, const std::string& mode,
                         const std::optional<at::Tensor>& per_sample_weights, bool include_last_offset,
                         std::optional<int64_t> padding_idx) const;

  /// The table that lookups read, laid out as the one that was quantised.
  at::Tensor dequantized() const;

  /// What a checkpoint keeps, in tensors of their own: "codes", uint8 [rows, columns], laid out as the table; "scales" and "offsets",
  /// float32 [rows], as placements_of_rows() says: each number on one rank, or on replicas. quantized_state.cpp.
  using State = std::map<std::string, at::Tensor>;
  State state() const;
  /// Takes such numbers over, from any layout: no number is rounded again. Collective over the mesh's members where something moves or
  /// rows are split, and for one number. Throws, on all ranks alike and before anything is taken: c10::ValueError, c10::TypeError for other
  /// names, shapes and dtypes, Partial tensors, and where a row's scale or offset is not finite.
  void load_state(const State& state);

 private:
  QuantizedTable() = default;

  SpecPtr spec_;
  std::vector<at::Tensor> pieces_;
};

}  // namespace shardwise
