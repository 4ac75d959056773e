// runtime/api/local_pieces.h: pieces that ranks pass in as their parts of a tensor: the sizes they imply, and whether the ranks agree.
#pragma once

#include "runtime/tensor/device_mesh.h"
#include "runtime/tensor/spec.h"

#include <ATen/core/Tensor.h>

#include <vector>

namespace shardwise {

/// Throws: c10::NotImplementedError for one of torch's nested tensors. The error names `op`.
void check_has_sizes(const char* op, const at::Tensor& tensor);

/// The global sizes if all ranks' pieces have `local`'s sizes along dims that have no explicit sizes.
Dims sizes_of_even_shards(c10::IntArrayRef local, const DeviceMesh& mesh, const std::vector<Placement>& placements);

/// True if every Shard has explicit sizes.
bool are_exact(const std::vector<Placement>& placements);

/// On meta, the lengths of `n` parts of `extent` elements if the part at `place` is `own`: the parts before it share the elements before it, and those
/// after it the rest.
std::vector<int64_t> lengths_around(const Interval& own, int64_t extent, int64_t n, int64_t place);
/// The interval of the part at `place` if it has `length` elements, and all other parts are equal.
Interval planned_interval(int64_t extent, int64_t n, int64_t place, int64_t length);

/// `placements`, where each Shard without sizes gets the sizes of the ranks' local tensors if they are not torch.chunk's split of `sizes`. Shards
/// of one dim along several mesh dims stay as they are. Collective over the mesh's members: one small message, which CommTrace leaves out.
/// Non-members get `placements` unchanged.
/// Throws, alike on all members: c10::ValueError if ranks give different `sizes`, if ranks that share an index of a Shard give different local
/// sizes, or if these do not add up.
std::vector<Placement> with_sizes_of_ranks(const at::Tensor& local, const DeviceMesh& mesh,
                                           std::vector<Placement> placements, c10::IntArrayRef sizes);

/// Throws: c10::ValueError if the number, dtype, device or shapes of this rank's pieces do not match `spec`.
void check_pieces(const std::vector<at::Tensor>& pieces, const Spec& spec);

/// The same check for the single tensor that a rank gives for a ragged layout. Throws: c10::ValueError also if it is not contiguous.
void check_flat_part(const at::Tensor& flat, const Spec& spec);

/// Compares the facts about the tensor that each rank has. Collective over the mesh's members.
/// Throws: c10::ValueError on all members, naming the first one that differs.
void check_ranks_agree(const at::Tensor& local, const Spec& spec);

/// `local` as the first rank of each line of replicas has it. Collective over the mesh's members. Cost: a broadcast per mesh dim that
/// replicates.
at::Tensor with_equal_replicas(at::Tensor local, const Spec& spec);

}  // namespace shardwise
