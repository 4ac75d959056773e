// wrappers/id_transform/raw_ids.h: raw ids for transforms: any integers, plain or distributed, and rows with the same layout.
#pragma once

#include "runtime/api/dtensor.h"

namespace shardwise {

inline bool is_integer(const at::Tensor& ids) { return at::isIntegralType(ids.scalar_type(), /*includeBool=*/false); }

/// Throws: c10::ValueError if `mesh` lacks ranks of `other`.
void check_has_ranks(const char* op, const DeviceMesh& mesh, const DeviceMesh& other);

/// Throws: c10::ValueError for a Partial tensor.
void check_not_partial(const char* op, const at::Tensor& tensor);

/// This rank's ids, int64 [n] on the CPU. Ids on meta count as different ones.
at::Tensor flat_ids(const at::Tensor& ids);

/// True if this rank's ids are counted: among replicas only one rank counts them.
bool counts_here(const at::Tensor& ids);

/// `rows` [n], one per id of flat_ids(), in the shape and on the device of `ids`; distributed if `ids` are.
at::Tensor laid_out_as(const at::Tensor& ids, const at::Tensor& rows);

}  // namespace shardwise
