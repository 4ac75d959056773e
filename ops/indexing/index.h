// ops/indexing/index.h: indexing with tensors: the lookup and the write that this folder's operators are composed of.
#pragma once

#include <ATen/core/Tensor.h>

#include <string_view>

namespace shardwise {

/// Index tensors, and the dims they index: consecutive or separate. They are distributed integers.
struct Indexed {
  std::vector<at::Tensor> indices;
  std::vector<int64_t> dims;  // ascending
  bool from_end = true;       // indices may be negative, and then count from the end
  /// The operator for which the lookup or write checks the indices; null if they are in range.
  const char* unchecked_of = nullptr;

  /// The sizes of self[indices]. Throws: c10::IndexError for indices that do not broadcast together.
  std::vector<int64_t> sizes_of(const at::Tensor& self) const;
};

/// self[:, ids, ...] and the like. `self` does not move; if it is sharded along an indexed dim, the result is Partial. If `self` is sharded along
/// another dim, or the indices are sharded, the result is sharded alike. The gradient has self's layout.
/// Throws: as checked_indices() if the indices are unchecked. The check sends nothing if an operand moves along the mesh dim that shards them.
at::Tensor look_up(const at::Tensor& self, Indexed at);

/// Assigns `values` to the elements that look_up() reads, or adds them if `accumulate`. Each rank writes its own shard. Values broadcast. Below
/// autograd.
at::Tensor put(const at::Tensor& self, Indexed at, at::Tensor values, bool accumulate);
void put_(at::Tensor self, Indexed at, at::Tensor values, bool accumulate);

/// at::scatter_reduce(), with errors of indices as index_reduce has them. Below autograd.
at::Tensor index_reduced(const at::Tensor& self, int64_t dim, const at::Tensor& index, const at::Tensor& src,
                         std::string_view reduce, bool include_self);

/// The indices of an aten operator. A mask becomes the indices of its true elements; the other indices then are checked, else unchecked.
/// Throws: c10::IndexError, equal on all ranks.
Indexed indexed(const char* op, const at::Tensor& self, const c10::List<std::optional<at::Tensor>>& indices);

}  // namespace shardwise
