// runtime/api/local_pieces.h: the pieces that a rank hands in as its part of a tensor: what they say of the whole, and whether the ranks agree.
#pragma once

#include "runtime/tensor/device_mesh.h"
#include "runtime/tensor/spec.h"

#include <ATen/core/Tensor.h>

#include <vector>

namespace shardwise {

/// Throws: c10::NotImplementedError for one of torch's nested tensors. `op` is named by the error.
void check_has_sizes(const char* op, const at::Tensor& tensor);

/// Global sizes, where the ranks' pieces are all of `local`'s sizes along dims without explicit sizes.
Dims sizes_of_even_shards(c10::IntArrayRef local, const DeviceMesh& mesh, const std::vector<Placement>& placements);

/// True where every Shard says its sizes.
bool are_exact(const std::vector<Placement>& placements);

/// `placements` with the sizes of the ranks' local tensors, where a Shard has none and they are not torch.chunk's of `sizes`.
/// Collective over the mesh's members: one small message, which CommTrace leaves out. Others get `placements`.
/// Throws, alike on all members: c10::ValueError where ranks that share an index of a Shard give different sizes, or these do not add up.
std::vector<Placement> with_sizes_of_ranks(const at::Tensor& local, const DeviceMesh& mesh,
                                           std::vector<Placement> placements, c10::IntArrayRef sizes);

/// Throws: c10::ValueError where number, dtype, device or shape of this rank's pieces are not those of `spec`.
void check_pieces(const std::vector<at::Tensor>& pieces, const Spec& spec);

/// The same of the one tensor that a rank gives of a ragged layout. Throws: c10::ValueError also where it is not contiguous.
void check_flat_part(const at::Tensor& flat, const Spec& spec);

/// Compares what the ranks believe of the tensor. Collective over the mesh's members.
/// Throws: c10::ValueError on all of them, naming the first who differs.
void check_ranks_agree(const at::Tensor& local, const Spec& spec);

/// `local` as the first rank of each line of replicas has it. Collective likewise. Cost: a broadcast per mesh dim that replicates.
at::Tensor with_equal_replicas(at::Tensor local, const Spec& spec);

}  // namespace shardwise
