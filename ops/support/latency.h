// ops/support/latency.h: when an exchange takes its latency, whatever it carries.
#pragma once

#include <cstdint>

namespace shardwise {

/// Up to so many bytes that a rank receives, latency is most of an exchange: one gather is faster than two sums of fewer bytes.
constexpr int64_t kLatencyBytes = int64_t{1} << 16;

}  // namespace shardwise
