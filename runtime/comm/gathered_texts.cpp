#include "runtime/comm/gathered_texts.h"

#include "runtime/comm/collectives.h"
#include "runtime/comm/group_backend.h"
#include "runtime/comm/messages.h"

#include <ATen/ops/empty.h>

#include <cstring>

namespace shardwise {

std::vector<std::string> gathered_texts(const Group& group, const std::string& own) {
  if (group.size() == 1) return {own};
  const auto lengths = all_gather_numbers(group, {static_cast<int64_t>(own.size())});
  const c10::Device device(numbers_device(group));
  const auto bytes_for = [](int64_t n_bytes) { return at::empty({n_bytes}, at::TensorOptions(at::kByte)); };
  if (group.index > 0) {
    std::vector<Message> sends;
    if (!own.empty()) {
      const at::Tensor bytes = bytes_for(static_cast<int64_t>(own.size()));
      std::memcpy(bytes.mutable_data_ptr(), own.data(), own.size());
      sends.push_back({group.ranks[0], bytes.to(device)});
    }
    exchange(group, device, std::move(sends), {})->wait();
    return {};
  }
  std::vector<at::Tensor> arriving(group.size());
  std::vector<Message> receives;
  for (int64_t i = 1; i < group.size(); ++i) {
    if (lengths[i][0] == 0) continue;
    arriving[i] = bytes_for(lengths[i][0]).to(device);
    receives.push_back({group.ranks[i], arriving[i]});
  }
  exchange(group, device, {}, std::move(receives))->wait();
  std::vector<std::string> texts{own};
  for (int64_t i = 1; i < group.size(); ++i) {
    const at::Tensor bytes = arriving[i].defined() ? arriving[i].cpu() : bytes_for(0);
    texts.emplace_back(static_cast<const char*>(bytes.const_data_ptr()), bytes.numel());
  }
  return texts;
}

}  // namespace shardwise
