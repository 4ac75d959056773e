// ops/embedding/batched_embedding.h: torch.func.vmap of embedding.
#pragma once

namespace shardwise {

/// Lets torch.func.vmap map embedding over ids and tables at once.
void register_batched_embedding();

}  // namespace shardwise
