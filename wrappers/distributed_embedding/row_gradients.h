// wrappers/distributed_embedding/row_gradients.h: the backward of one lookup: gradients of results -> of rows -> of tables.
#pragma once

#include "wrappers/distributed_embedding/lookup_step.h"

namespace shardwise {

struct StepGradients {
  /// Undefined where it is not wanted, where an optimizer took it, and where no feature uses the table.
  std::vector<at::Tensor> tables;
  std::vector<at::Tensor> weights;  // of the step's weighted features, in their order
};

/// `grads`: by feature, of its result; undefined ones are zeros. `wanted`: by table; what is not wanted goes to no optimizer.
/// Collective: one exchange.
StepGradients step_gradients(const LookupStep& step, const std::vector<at::Tensor>& grads,
                             const std::vector<bool>& wanted);

}  // namespace shardwise
