// ops/elementwise/loss_scaling.h: what torch.amp.GradScaler asks of gradients.
#pragma once

namespace shardwise {

/// Registers the check for infinite and NaN gradients, on all ranks, and their product with the inverse scale.
void register_loss_scaling();

}  // namespace shardwise
