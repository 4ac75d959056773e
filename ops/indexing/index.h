// ops/indexing/index.h: indexing with tensors, as two differentiable operators that the family is made of.
#pragma once

#include <ATen/core/Tensor.h>

namespace shardwise {

/// Index tensors of consecutive or separate dims, and the dims they index. Distributed, of integers, in range.
struct Indexed {
  std::vector<at::Tensor> indices;
  std::vector<int64_t> dims;  // ascending

  /// The sizes that `self` has once indexed. Throws: c10::IndexError for indices that do not broadcast together.
  std::vector<int64_t> sizes_of(const at::Tensor& self) const;
};

/// self[:, ids, ...] and the like: a self cut along an indexed dim stays where it is, and the result is Partial; one cut along
/// other dims, or indices that are cut, give a result cut likewise. The gradient is laid out as self.
at::Tensor look_up(const at::Tensor& self, const Indexed& at);

/// The same elements = values, or += where `accumulate`: each rank writes those it has. Values broadcast. Below autograd.
at::Tensor put(const at::Tensor& self, const Indexed& at, const at::Tensor& values, bool accumulate);
void put_(at::Tensor self, const Indexed& at, const at::Tensor& values, bool accumulate);

/// Indices as aten's index operators take them: masks become the places where they are true, and all indices are checked.
/// Throws: c10::IndexError, equal on all ranks.
Indexed indexed(const char* op, const at::Tensor& self, const c10::List<std::optional<at::Tensor>>& indices);

}  // namespace shardwise
