#include "runtime/comm/order_check.h"

#include "runtime/comm/comm_trace.h"
#include "runtime/comm/digest.h"
#include "runtime/comm/group_backend.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <string>

namespace shardwise {
namespace {

constexpr int64_t kTextBytes = 1024;  // of each rank's call; a longer one is shown in part

std::atomic<bool>& order_check() {
  static std::atomic<bool> is_on = [] {
    const char* const value = std::getenv("SHARDWISE_CHECK");
    return value != nullptr && std::strcmp(value, "1") == 0;
  }();
  return is_on;
}

/// "all_reduce for aten::mm (Float [4, 4] as [Partial(sum)] on (4))".
std::string own_call(const char* collective, std::optional<c10::ScalarType> dtype) {
  const std::string layouts = CommScope::current_layouts();
  const std::string dtype_name = dtype ? c10::toString(*dtype) : "";
  std::string call = collective;
  if (*CommScope::current_op() != '\0') call += fmt::format(" for {}", CommScope::current_op());
  if (layouts.empty() && dtype)
    call += fmt::format(" ({})", dtype_name);
  else if (!layouts.empty())
    call += layouts.starts_with(dtype_name) ? fmt::format(" ({})", layouts)
                                            : fmt::format(" ({}; sent as {})", layouts, dtype_name);
  return call;
}

/// By group order. Collective.
std::vector<std::string> all_calls(const Group& group, const std::string& own) {
  const at::Tensor bytes = at::zeros({kTextBytes}, at::kByte);
  std::memcpy(bytes.mutable_data_ptr(), own.data(), std::min<size_t>(own.size(), kTextBytes - 1));
  const at::Tensor rows = gather_rows(group, bytes.to(numbers_device(group)));
  std::vector<std::string> calls;
  for (int64_t i = 0; i < group.size(); ++i)
    calls.emplace_back(static_cast<const char*>(rows.const_data_ptr()) + i * kTextBytes);
  return calls;
}

}  // namespace

bool set_order_check(bool is_on) { return order_check().exchange(is_on); }

void check_order(const Group& group, const char* collective, std::optional<c10::ScalarType> dtype) {
  if (!order_check().load(std::memory_order_relaxed) || group.size() == 1) return;
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  const std::string own = own_call(collective, dtype);
  Digest digest;
  digest.add(own);
  const auto options = at::TensorOptions(at::kLong).device(numbers_device(group));
  const at::Tensor hashes = gather_rows(group, at::full({1}, digest.value(), options));
  const int64_t* const begin = hashes.const_data_ptr<int64_t>();
  const int64_t* const other = std::find_if(begin, begin + group.size(), [&](int64_t hash) { return hash != *begin; });
  if (other == begin + group.size()) return;
  const auto calls = all_calls(group, own);
  TORCH_CHECK_VALUE(false, fmt::format("[check] rank {} is about to {}, rank {} to {}. Every rank must make the same "
                                       "calls in the same order.",
                                       group.ranks[0], calls[0], group.ranks[other - begin], calls[other - begin]));
}

}  // namespace shardwise
