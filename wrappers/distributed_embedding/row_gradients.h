// wrappers/distributed_embedding/row_gradients.h: the backward of one lookup: gradients of results -> of rows -> of tables.
#pragma once

#include "wrappers/distributed_embedding/lookup_step.h"

namespace shardwise {

struct StepGradients {
  std::vector<at::Tensor> tables;   // undefined where an optimizer took it, and where no feature uses the table
  std::vector<at::Tensor> weights;  // of the step's weighted features, in their order
};

/// `grads`: by feature, of its result; undefined ones are zeros. Collective: one exchange.
StepGradients step_gradients(const LookupStep& step, const std::vector<at::Tensor>& grads);

}  // namespace shardwise
