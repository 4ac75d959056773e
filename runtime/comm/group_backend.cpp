#include "runtime/comm/group_backend.h"

#include "runtime/comm/backend_traits.h"
#include "runtime/comm/communication.h"
#include "runtime/comm/late_group.h"
#include "runtime/comm/memory_view.h"
#include "runtime/comm/torch_versions.h"
#include "text/check.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

namespace shardwise {

int64_t Group::index_of(int64_t rank) const {
  const auto found = std::ranges::find(ranks, rank);
  SW_CHECK_VALUE(found != ranks.end(),
                 "[group] rank {} is not a member of the group of ranks {}. Ask for one of its members.", rank, ranks);
  return found - ranks.begin();
}

GroupPtr without_sending(const GroupPtr& group) {
  if (!group) return nullptr;
  return std::make_shared<const Group>(
      Group{.process_group = nullptr, .ranks = group->ranks, .index = group->index, .sends = false});
}

c10d::ProcessGroup& open_group(const Group& group, const char* op) {
  SW_CHECK_VALUE(group.process_group,
                 "[{}] the process group of ranks {} was destroyed or never made (DeviceMesh(_init_backend=False), or "
                 "a mesh that was sent to a process that is no rank), or the program is ending. Make meshes and "
                 "DTensors after init_process_group(), with their groups.",
                 op, group.ranks);
  auto* const late = dynamic_cast<LateGroup*>(group.process_group.get());
  return late ? late->made() : *group.process_group;
}

c10::intrusive_ptr<c10d::Backend> backend_of(const Group& group, const char* op, c10::DeviceType device) {
  if (!group.sends) [[unlikely]]
    return nullptr;
  c10d::ProcessGroup& process_group = open_group(group, op);
  SW_CHECK_VALUE(has_backend_for(process_group, device),
                 "[{}] the group of ranks {} has no backend for {} tensors. Start the ranks with one: "
                 "\"cpu:gloo,cuda:nccl\" serves both.",
                 op, group.ranks, c10::DeviceTypeName(device, /*lower_case=*/true));
  return process_group.getBackend(device);
}

c10::DeviceType numbers_device(const Group& group) {
  if (group.size() == 1 || !group.sends) return c10::kCPU;
  c10d::ProcessGroup& process_group = open_group(group, "group");
  const auto devices = process_group.getDeviceTypes();
  return devices.empty() || has_backend_for(process_group, c10::kCPU) ? c10::kCPU : devices[0].type();
}

void connect(const Group& group, const char* op, c10::Device device) {
  if (group.size() == 1 || !group.sends) return;
  const auto backend = backend_of(group, op, device.type());
  if (!traits_of(*backend).connects_at_first_call || backend->getSequenceNumberForGroup() > 0) return;
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  std::vector<at::Tensor> one{at::zeros({1}, at::TensorOptions(at::kByte).device(device))};
  Communication(group, {.name = "connect"}).run([&] { return backend->allreduce(one, {}); });
}

void check_contiguous(const char* op, const at::Tensor& tensor) {
  SW_CHECK_VALUE(tensor.is_contiguous(),
                 "[{}] got a tensor of shape {} and strides {}, which is not contiguous. Call contiguous() first.", op,
                 tensor.sizes(), tensor.strides());
}

at::Tensor bytes_of(const at::Tensor& tensor) {
  if (tensor.is_conj() || tensor.is_neg()) return tensor.view(at::kByte);  // torch refuses
  return memory_view(tensor, 0, {static_cast<int64_t>(tensor.nbytes())}, at::kByte);
}

}  // namespace shardwise
