// runtime/tensor/shards.h: this rank's pieces of a distributed tensor, and pieces still to arrive.
#pragma once

#include "runtime/tensor/spec.h"

#include <ATen/core/Tensor.h>
#include <c10/util/SmallVector.h>

namespace shardwise {

/// This rank's pieces, in the order of Spec::boxes(); none on a non-member.
using Shards = c10::SmallVector<at::Tensor, 1>;

/// Pieces still to arrive: a move whose last messages are in flight (its destructor waits for them), or terms that this rank computes from
/// local data at the first read.
class PendingMove {
 public:
  virtual ~PendingMove() = default;
  /// Waits for the pieces; starts no message. Call it once only. Throws: the backend's errors.
  virtual Shards finish() = 0;
};

}  // namespace shardwise
