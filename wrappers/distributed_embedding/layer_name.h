// wrappers/distributed_embedding/layer_name.h: the layer's name in its errors and in traces.
#pragma once

namespace shardwise {

inline constexpr const char* kLayer = "DistributedEmbedding";

}  // namespace shardwise
