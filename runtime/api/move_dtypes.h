// runtime/api/move_dtypes.h: moves that also change the dtype.
#pragma once

#include "runtime/api/redistribute.h"

namespace shardwise {

struct MoveDtypes {
  /// The result's dtype, if not the tensor's own. The tensor is cast before anything is sent.
  std::optional<at::ScalarType> forward;
  /// The dtype in which gradients are sent back, if not the result's. They are cast to the tensor's own dtype on arrival.
  std::optional<at::ScalarType> backward;
};

/// redistribute() of redistribute.h with these dtypes.
at::Tensor redistribute(const at::Tensor& tensor, const MeshPtr& mesh, Placements placements,
                        const RedistributeOptions& options, const MoveDtypes& dtypes);

}  // namespace shardwise
