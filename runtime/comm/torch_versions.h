// runtime/comm/torch_versions.h: what differs between the versions of torch that Shardwise compiles against (2.11 to 2.15), by one name each.
//
// scripts/torch_matrix compiles and tests with several. Code that needs to know a version stands here and nowhere else.
#pragma once

#include <torch/headeronly/version.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <algorithm>
#include <string_view>
#include <vector>

#define SHARDWISE_TORCH_SINCE(major, minor) \
  (TORCH_VERSION_MAJOR > (major) || (TORCH_VERSION_MAJOR == (major) && TORCH_VERSION_MINOR >= (minor)))

namespace shardwise {

/// True for an operator that has a rule here and that not all versions of torch have.
inline bool is_of_some_versions(std::string_view op) {
  return op == "aten::cholesky" || op.starts_with("aten::_upsample_lanczos2d_aa");
}

/// Whether the group sends tensors of this kind of device. torch 2.11 has only the list of all.
inline bool has_backend_for(c10d::ProcessGroup& group, c10::DeviceType device) {
#if SHARDWISE_TORCH_SINCE(2, 13)
  return group.hasBackendForDeviceType(device);
#else
  const std::vector<c10::Device> devices = group.getDeviceTypes();
  return std::ranges::any_of(devices, [&](c10::Device each) { return each.type() == device; });
#endif
}

}  // namespace shardwise
