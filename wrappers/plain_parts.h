// wrappers/plain_parts.h: torch.Tensors as operands of model-parallel layers: copies, or each rank's part along one dim.
#pragma once

#include "runtime/api/dtensor.h"

namespace shardwise {

/// Throws, in the name of `op`, c10::IndexError if the mesh of `weight` has no dim `mesh_dim`, and c10::ValueError if `input` is a DTensor on another
/// mesh.
void check_mesh(const char* op, const at::Tensor& input, const at::Tensor& weight, int64_t mesh_dim);

/// The tensor on a 1-D mesh whose parts along `dim` the ranks pass. The ranks exchange dtype and sizes (agreement.h).
/// Throws: c10::ValueError in the name of `op`, alike on all ranks, if parts differ in another dim or in dtype, or are 0-dim. Pre: this rank is a
/// member.
at::Tensor joined_parts(const at::Tensor& part, int64_t dim, const MeshPtr& mesh, const char* op);

/// This rank's part of a tensor, for the program: its only piece, or its pieces concatenated along the last dim.
at::Tensor local_part(const at::Tensor& tensor);

/// The reverse: a tensor of `spec` from `part`, this rank's pieces concatenated along the last dim.
/// Throws: c10::ValueError in the name of `op` if the part is not as wide as the pieces.
at::Tensor from_part(const at::Tensor& part, const SpecPtr& spec, const char* op);

/// `tensor` with another placement on one mesh dim.
at::Tensor placed_on(const at::Tensor& tensor, int64_t mesh_dim, const Placement& placement);

}  // namespace shardwise
