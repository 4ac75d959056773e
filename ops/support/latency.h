// ops/support/latency.h: the size of message up to which an exchange costs its latency only.
#pragma once

#include <cstdint>

namespace shardwise {

/// If a rank receives at most this many bytes, latency dominates: one gather is faster than two sums of fewer bytes.
constexpr int64_t kLatencyBytes = int64_t{1} << 16;

}  // namespace shardwise
