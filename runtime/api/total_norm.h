// runtime/api/total_norm.h: the norm of many tensors as one vector, as gradient clipping wants it.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace shardwise {

/// (sum |x|^p)^(1/p) over the elements of all tensors, p = `norm_type`, not 0 (infinite: their maximum or minimum).
/// Distributed tensors of any meshes, plain ones that are equal on all ranks. Pre: `tensors` are the same list on all ranks.
///
/// The result is 0-dim, of the dtype that torch's norm has, replicated on the first mesh of the most ranks; plain where all are plain.
///
/// One all-reduce where all meshes have the same ranks, or one has the ranks of all; else one for each set of ranks. Partial
/// and sparse tensors are reduced before. The message says which tensors a rank gives. Collective over the meshes. Throws: c10::ValueError where p is 0; on
/// all ranks where they give other tensors, as they do if a parameter has a gradient on some of them; and, on ranks outside one of several
/// meshes of which none has the ranks of all others, after what they send to others. On a GPU it waits for the message.
at::Tensor total_norm(const std::vector<at::Tensor>& tensors, double norm_type);

}  // namespace shardwise
