// runtime/comm/torch_versions.h: one name for each thing that differs between the supported versions of torch (2.11 to 2.15).
//
// scripts/torch_matrix compiles and tests with several versions. All code that depends on a version is here.
#pragma once

#include <torch/csrc/autograd/variable.h>
#include <torch/headeronly/version.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <algorithm>
#include <string_view>
#include <vector>

#define SHARDWISE_TORCH_SINCE(major, minor) \
  (TORCH_VERSION_MAJOR > (major) || (TORCH_VERSION_MAJOR == (major) && TORCH_VERSION_MINOR >= (minor)))

namespace shardwise {

/// True for an operator that has a rule here but does not exist in all versions of torch.
inline bool is_of_some_versions(std::string_view op) {
  return op == "aten::cholesky" || op.starts_with("aten::_upsample_lanczos2d_aa");
}

/// Whether the group can send tensors of this kind of device. torch 2.11 only lists all its devices.
inline bool has_backend_for(c10d::ProcessGroup& group, c10::DeviceType device) {
#if SHARDWISE_TORCH_SINCE(2, 13)
  return group.hasBackendForDeviceType(device);
#else
  const std::vector<c10::Device> devices = group.getDeviceTypes();
  return std::ranges::any_of(devices, [&](c10::Device each) { return each.type() == device; });
#endif
}

/// Whether nobody else holds the tensor, so that a gradient may take its memory. In some versions Python's object for a tensor holds it, too.
template <class Tensor>
bool is_stealable(const Tensor& tensor) {
  if constexpr (requires { torch::autograd::impl::is_tensor_stealable(tensor); })
    return torch::autograd::impl::is_tensor_stealable(tensor);
  else
    return tensor.use_count() <= 1;
}

}  // namespace shardwise
