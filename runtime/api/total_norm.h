// runtime/api/total_norm.h: the norm of many tensors as one vector, for gradient clipping.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace shardwise {

/// (sum |x|^p)^(1/p) over the elements of all tensors, where p = `norm_type` is not 0 (infinite p: the maximum or minimum of |x|).
/// Takes distributed tensors of any meshes, and plain tensors that are equal on all ranks. Pre: `tensors` is the same list on all ranks.
///
/// The result is 0-dim, of the dtype of torch's norm, replicated on the first of the meshes with the most ranks; plain if all tensors are
/// plain.
///
/// Collective over the meshes: one all-reduce if one mesh has the ranks of all meshes, otherwise one for each set of ranks. Partial and
/// sparse tensors are reduced before. The message includes a digest of the list of tensors. On a GPU the call waits for the message.
/// Throws: c10::ValueError if p is 0; on all ranks if their lists differ, for example because a parameter has a gradient on some ranks
/// only; and, if no mesh has the ranks of all others, on ranks outside some mesh, after they have sent their own terms.
at::Tensor total_norm(const std::vector<at::Tensor>& tensors, double norm_type);

}  // namespace shardwise
