// wrappers/fsdp/gradient_reduction.h: reduces the gradients of a group of parameters to the ranks that have the parameters' parts.
#pragma once

#include "wrappers/fsdp/sharded_parameter.h"

#include "runtime/redistribute/packed_messages.h"

#include <vector>

namespace shardwise {

/// One exchange among the ranks that share the parameters. Each rank sends every other rank its gradients for that rank's parts, and a byte per
/// parameter that tells whether it has a gradient.
class GradientReduction {
 public:
  /// Starts the exchange. `gradients`: of this rank's whole parameters; undefined for parameters that are not reduced, alike on all ranks. `has`:
  /// false if a gradient is zeros because this rank has none. Pre: `ranks` and `parameters` outlive this object.
  GradientReduction(const Group& ranks, const std::vector<ShardedParameter>& parameters,
                    std::vector<at::Tensor> gradients, const std::vector<bool>& has);

  /// The parameters that are reduced.
  const std::vector<size_t>& which() const { return which_; }

  /// Waits, and sums the gradients of all ranks, in rank order, for this rank's part of parameter `which()[k]` into `sums[k]`. Returns, by `which()`,
  /// 1 if some rank has a gradient.
  std::vector<uint8_t> finish(const std::vector<at::Tensor>& sums);

 private:
  bool has_all() const;
  /// The tensor that another rank, `member`, sent for which()[k]; its bytes `has` for k = which().size().
  const at::Tensor& arrived(int64_t member, size_t k) const;

  const Group& ranks_;
  const std::vector<ShardedParameter>& parameters_;
  PackedMessages messages_;
  std::vector<at::Tensor> gradients_;
  std::vector<size_t> which_;
  std::vector<uint8_t> has_;      // by which_
  std::vector<size_t> arrivals_;  // by other member, then by which_ and finally the member's `has`
};

}  // namespace shardwise
