// wrappers/distributed_embedding/feature_ids.h: this rank's ids of one input of the layer.
#pragma once

#include "ops/embedding/row_kernels.h"
#include "runtime/tensor/spec.h"
#include "wrappers/embedding_plan/embedding_plan.h"

#include <optional>
#include <string>

namespace shardwise {

/// An input: the table of its ids, and the combiner for their rows.
struct Feature {
  std::string name;
  size_t table = 0;  // index into TableLanes::tables
  Combiner combiner = Combiner::kSum;
};

/// A program's input for one feature: ids [samples] or [samples, ids per sample], or flat ids with `offsets` or `lengths`.
struct FeatureInput {
  at::Tensor ids;
  std::optional<at::Tensor> offsets;  // [samples + 1]: sample i has the ids [offsets[i], offsets[i + 1])
  std::optional<at::Tensor> lengths;  // [samples]
  std::optional<at::Tensor> weights;  // of the ids' shape and the table's dtype; with sums and means only
};

/// The same input with flat ids.
struct FeatureIds {
  at::Tensor ids;                           // [n] int64, on the CPU
  std::optional<kernels::Pooling> pooling;  // nullopt: rows are not combined, or each sample has one id
  at::Tensor offsets;                       // with pooling: [samples] int64, on the table's device
  at::Tensor weights;                       // [n]; undefined: 1
  std::vector<int64_t> sizes;               // of the result, without columns

  /// The bags of samples, with `numbers` in place of ids.
  IdBags bags(at::Tensor numbers) const { return {std::move(numbers), offsets, -1, weights}; }
  /// The sizes of a result with `n_columns` columns.
  std::vector<int64_t> sizes_with(int64_t n_columns) const;
  /// Combines `rows` [n, columns] into the result, [samples or ids, columns]. `numbers`: the row of each id in `rows`. `chosen`: receives, for
  /// maxima, the index of the id that each maximum came from.
  at::Tensor combined(const at::Tensor& rows, const at::Tensor& numbers, at::Tensor* chosen) const;
  template <class Visit>
  void for_each_tensor(const Visit& visit) {
    for (at::Tensor* tensor : {&ids, &offsets, &weights}) visit(*tensor);
  }

  /// Throws: c10::TypeError and c10::ValueError that name the feature. If `table` is on meta, ids are PlannedIds and samples have equally many.
  static FeatureIds of(const Feature& feature, const FeatureInput& input, const Spec& table);
};

}  // namespace shardwise
