// python/torch_world.h: the World of a Python process, made from torch.distributed.
#pragma once

#include "runtime/comm/world.h"

namespace shardwise {

/// The World of this thread (run_ranks), else of torch.distributed's default group; a new World if that group is new. Under torchrun,
/// torch.distributed is initialised first if it is not.
///
/// Throws: c10::ValueError saying how to start ranks. Collective over the processes if torch.distributed is initialised.
std::shared_ptr<World> python_world();

}  // namespace shardwise
