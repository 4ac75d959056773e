// ops/elementwise/loss_scaling.h: the operator that torch.amp.GradScaler calls on gradients.
#pragma once

namespace shardwise {

/// Registers the operator that multiplies gradients by the inverse scale and reports to all ranks whether one of them was infinite or NaN.
void register_loss_scaling();

}  // namespace shardwise
