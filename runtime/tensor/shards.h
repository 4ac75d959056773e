// runtime/tensor/shards.h: this rank's pieces of a distributed tensor, and pieces that are still on their way.
#pragma once

#include "runtime/tensor/spec.h"

#include <ATen/core/Tensor.h>
#include <c10/util/SmallVector.h>

namespace shardwise {

/// This rank's pieces, in the order of Spec::boxes(); none on a non-member.
using Shards = c10::SmallVector<at::Tensor, 1>;

/// Pieces that are still to come: a move whose last messages are under way (dropping it waits for them), or terms that this rank makes of
/// what it has when somebody reads them.
class PendingMove {
 public:
  virtual ~PendingMove() = default;
  /// Waits for them; starts no message. Once only. Throws: what the backend throws.
  virtual Shards finish() = 0;
};

}  // namespace shardwise
