// runtime/tensor/shards.h: this rank's pieces of a distributed tensor, and pieces that are still on their way.
#pragma once

#include "runtime/tensor/spec.h"

#include <ATen/core/Tensor.h>
#include <c10/util/SmallVector.h>

#include <optional>

namespace shardwise {

/// This rank's pieces, in the order of Spec::boxes(); none on a non-member.
using Shards = c10::SmallVector<at::Tensor, 1>;

/// Pieces that are still to come: a move whose last messages are under way (dropping it waits for them), or rows not fetched yet.
class PendingMove {
 public:
  virtual ~PendingMove() = default;
  /// The pieces laid out as `to`, where they can be had so at less cost than by finish(), which may follow all the same. Collective.
  virtual std::optional<Shards> fetch_as(const SpecPtr& /*to*/) { return std::nullopt; }
  /// True where finish() is collective: the other ranks send nothing before they call it.
  virtual bool is_unfetched() const { return false; }
  /// Waits for them. Once only. Throws: what the backend throws.
  virtual Shards finish() = 0;
};

}  // namespace shardwise
