// wrappers/fsdp/gradient_reduction.h: gradients of a group of parameters on their way to the ranks that have the parameters' parts.
#pragma once

#include "wrappers/fsdp/sharded_parameter.h"

#include "runtime/redistribute/packed_messages.h"

#include <vector>

namespace shardwise {

/// One exchange among the ranks that share the parameters. Each sends every other what it has of that one's part, and a byte per parameter:
/// whether it has a gradient.
class GradientReduction {
 public:
  /// Starts it. `gradients` of this rank's whole parameters, by parameter; undefined for those that are not reduced, alike on all ranks. `has`:
  /// false where this rank's is zeros because it has none. Pre: the first two outlive this.
  GradientReduction(const Group& ranks, const std::vector<ShardedParameter>& parameters,
                    std::vector<at::Tensor> gradients, const std::vector<bool>& has);

  /// The parameters that are reduced.
  const std::vector<size_t>& which() const { return which_; }

  /// Waits, and adds the parts of this rank, all ranks' in their order, into `sums[k]` for parameter `which()[k]`. Returns by these 1 where some rank
  /// has a gradient.
  std::vector<uint8_t> finish(const std::vector<at::Tensor>& sums);

 private:
  bool has_all() const;
  /// What `member`, another rank, sent of which()[k], or after these of what it has.
  const at::Tensor& arrived(int64_t member, size_t k) const;

  const Group& ranks_;
  const std::vector<ShardedParameter>& parameters_;
  PackedMessages messages_;
  std::vector<at::Tensor> gradients_;
  std::vector<size_t> which_;
  std::vector<uint8_t> has_;      // by which_
  std::vector<size_t> arrivals_;  // by member but this one, then by which_, and what that one has
};

}  // namespace shardwise
