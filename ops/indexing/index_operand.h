// ops/indexing/index_operand.h: index tensors as operands: distributed, without Partial, range-checked on all ranks.
#pragma once

#include "runtime/tensor/spec.h"

#include <ATen/core/Tensor.h>

#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace shardwise {

/// True if no other rank takes part in an operator on distributed `operand`. torch's kernel then refuses bad indices by itself, and they are read once.
bool is_alone(const at::Tensor& operand);

/// `index` as an operand on `mesh`. A plain tensor counts as a replica; a Partial is reduced.
/// Throws: c10::ValueError for an index on another mesh, and for a plain one that plain_operand.h objects to.
at::Tensor index_operand(const char* op, const at::Tensor& index, const MeshPtr& mesh);

/// The layout of distributed `index`, for a dim of `self`. Indices of no more bytes than `self` are whole on the mesh dims that shard it: the operators
/// gather them there anyway, and the check of whole indices sends nothing.
SpecPtr layout_beside(const at::Tensor& index, const at::Tensor& self);

/// index_operand() in that layout.
at::Tensor index_of(const char* op, const at::Tensor& index, const at::Tensor& self);

/// A tensor without dims as a vector of one element.
inline at::Tensor at_least_1d(const at::Tensor& tensor) { return tensor.dim() == 0 ? tensor.unsqueeze(0) : tensor; }

/// The lowest and the highest index on all ranks, apart from those equal to `ignored`. Plain indices are equal on all ranks. Nullopt without indices,
/// for traced and meta ones, and on ranks outside the mesh. Cost: a pass over this rank's indices, for which the host waits; an all-reduce of two
/// numbers for sharded ones. Without `of_all_ranks`: of this rank's indices alone; nothing is sent.
std::optional<std::pair<int64_t, int64_t>> range_of(const at::Tensor& index,
                                                    std::optional<int64_t> ignored = std::nullopt,
                                                    bool of_all_ranks = true);

/// The lowest and the highest of all ranks' bounds for a tensor laid out as `spec`. Cost: an all-reduce of two numbers per mesh dim that shards it.
std::pair<int64_t, int64_t> agreed_range(const Spec& spec, std::pair<int64_t, int64_t> own);

/// True if `index` is distributed and a tracer's.
bool is_traced_index(const at::Tensor& index);

using CheckRange = std::function<void(int64_t lowest, int64_t highest)>;

/// The same as checked_range() in a traced program. `words`: everything that the check depends on besides the indices.
at::Tensor checked_in_graph(const at::Tensor& index, const std::string& words, const CheckRange& check,
                            std::optional<int64_t> ignored);

/// Returns `index` after `check` of range_of(index, ignored), if there is one. In a traced program the check is a step of the graph, named by
/// `words()`, and the result follows it.
template <class Words, class Check>
[[nodiscard]] at::Tensor checked_range(const at::Tensor& index, const Words& words, const Check& check,
                                       std::optional<int64_t> ignored = std::nullopt) {
  if (is_traced_index(index)) [[unlikely]]
    return checked_in_graph(index, words(), check, ignored);
  if (const auto range = range_of(index, ignored)) check(range->first, range->second);
  return index;
}

/// `index` as checked_range() returns it.
/// Throws: c10::IndexError naming the worst index if one is not in [lowest, size), on all ranks alike. `lowest`: -size if the operator accepts
/// negative indices, else 0. On a mesh of one rank torch's kernel throws instead. `self`: a distributed tensor whose dim `dim` has this size. If the
/// size is a symbol, a graph checks the indices for the size with which it runs.
[[nodiscard]] at::Tensor checked_indices(const char* op, const at::Tensor& index, int64_t dim, int64_t lowest,
                                         int64_t size, const at::Tensor& self = {});

/// The same for torch's gather and scatter, whose error is a c10::Error, and whose indices are in [0, size).
[[nodiscard]] at::Tensor checked_positions(const char* op, const at::Tensor& index, int64_t dim, int64_t size,
                                           const at::Tensor& self = {});

/// Indices in [lowest, size) for tensor dim `dim`.
struct IndexBounds {
  int64_t dim, lowest, size;
};

/// Moves `operands`, of which those from 1 on are indices, one for each of `bounds`. `wanted()`: the layouts to which operands will move, null for those
/// that stay. If some of them move along the only mesh dim that shards the indices, they move here, together; the ranks' bounds of the indices travel
/// with them, and the result is true. Else nothing happens.
/// Throws: as checked_indices(), and with `fails_as_gather` as checked_positions().
bool move_in_range(const char* op, std::vector<at::Tensor>& operands, c10::ArrayRef<IndexBounds> bounds,
                   bool fails_as_gather, const std::function<c10::SmallVector<SpecPtr, 8>()>& wanted);

}  // namespace shardwise
