// wrappers/distributed_embedding/row_gradients.h: the backward of one lookup: from gradients of results to gradients of rows and of tables.
#pragma once

#include "wrappers/distributed_embedding/lookup_step.h"

namespace shardwise {

struct StepGradients {
  /// By table. Undefined if it is not wanted, if an optimizer took it, or if no feature uses the table.
  std::vector<at::Tensor> tables;
  std::vector<at::Tensor> weights;  // of the step's weighted features, in their order
};

/// `grads`: the gradients of results, by feature; an undefined gradient is zero. `wanted`: by table; gradients that are not wanted are not passed to
/// an optimizer.
/// Collective: one exchange.
StepGradients step_gradients(const LookupStep& step, const std::vector<at::Tensor>& grads,
                             const std::vector<bool>& wanted);

}  // namespace shardwise
