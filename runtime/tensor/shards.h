// runtime/tensor/shards.h: this rank's pieces of a distributed tensor, and pieces that are still on their way.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/SmallVector.h>

namespace shardwise {

/// This rank's pieces, in the order of Spec::boxes(); none on a non-member.
using Shards = c10::SmallVector<at::Tensor, 1>;

/// A move whose last messages are under way. Dropping it waits for them.
class PendingMove {
 public:
  virtual ~PendingMove() = default;
  /// Waits for them. Once only. Throws: what the backend throws.
  virtual Shards finish() = 0;
};

}  // namespace shardwise
