// runtime/tensor/planned_device.h: the device for which plain tensors on meta are planned.
#pragma once

#include <c10/core/DeviceType.h>

namespace shardwise {

/// The kind of device of DeviceMesh::plan_for(), or else CUDA.
c10::DeviceType planned_device_on_meta();

}  // namespace shardwise
