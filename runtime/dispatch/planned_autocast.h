// runtime/dispatch/planned_autocast.h: autocast for tensors on meta. torch's own autocast casts the tensors of one kind of device alone.
#pragma once

#include <c10/core/Device.h>

#include <optional>

namespace shardwise {

/// From now on this thread's operators cast tensors on meta as autocast for `device_type` does on that device: the same operators, dtypes and cache of cast
/// parameters. std::nullopt ends it. Either empties the cache. Cost: a microsecond per operator.
void plan_autocast(std::optional<c10::DeviceType> device_type);

}  // namespace shardwise
