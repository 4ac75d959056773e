// runtime/api/move_dtypes.h: moves that change the dtype, too.
#pragma once

#include "runtime/api/redistribute.h"

namespace shardwise {

struct MoveDtypes {
  /// The result's, if not the tensor's own: cast before anything is sent.
  std::optional<at::ScalarType> forward;
  /// In which gradients go back, if not in the result's; they arrive in the tensor's own.
  std::optional<at::ScalarType> backward;
};

/// redistribute() of redistribute.h in these dtypes.
at::Tensor redistribute(const at::Tensor& tensor, const MeshPtr& mesh, Placements placements,
                        const RedistributeOptions& options, const MoveDtypes& dtypes);

}  // namespace shardwise
