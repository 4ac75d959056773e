#include "runtime/comm/order_check.h"

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

constexpr size_t kTextBytes = 1024;  // of each rank's call; of a longer one the layouts are shown in part

std::atomic<bool>& order_check() {
  static std::atomic<bool> is_on = [] {
    const char* const value = std::getenv("SHARDWISE_CHECK");
    return value != nullptr && std::strcmp(value, "1") == 0;
  }();
  return is_on;
}

/// "all_reduce for aten::mm (Float [4, 4] as [Partial(sum)] on (4))", of at most `n_bytes` with the end of the layouts left out.
std::string words(const CheckedCall& call, size_t n_bytes) {
  const std::string dtype = call.dtype ? c10::toString(*call.dtype) : "";
  std::string text = call.collective;
  if (!call.op.empty()) text += fmt::format(" for {}", call.op);
  if (call.layouts.empty() && call.dtype)
    text += fmt::format(" ({})", dtype);
  else if (!call.layouts.empty())
    text += call.layouts.starts_with(dtype) ? fmt::format(" ({})", call.layouts)
                                            : fmt::format(" ({}; sent as {})", call.layouts, dtype);
  if (text.size() > n_bytes) text.resize(n_bytes);
  return text;
}

/// words() and where the program makes the call.
std::string words_with_source(const CheckedCall& call) {
  const std::string source = call.source.empty() ? "" : fmt::format(" at {}", call.source);
  const size_t n_bytes = kTextBytes - 1;
  return words(call, n_bytes - std::min(n_bytes, source.size())) + source.substr(0, n_bytes);
}

/// By group order. Collective.
std::vector<std::string> all_calls(const Group& group, const std::string& own) {
  const at::Tensor bytes = at::zeros({static_cast<int64_t>(kTextBytes)}, at::kByte);
  std::memcpy(bytes.mutable_data_ptr(), own.data(), own.size());
  const at::Tensor rows = gather_unrecorded(group, bytes.to(numbers_device(group)));
  std::vector<std::string> calls;
  for (int64_t i = 0; i < group.size(); ++i)
    calls.emplace_back(static_cast<const char*>(rows.const_data_ptr()) + i * kTextBytes);
  return calls;
}

}  // namespace

bool set_order_check(bool is_on) { return order_check().exchange(is_on); }

bool checks_order() { return order_check().load(std::memory_order_relaxed); }

std::string compare_calls(const Group& group, const CheckedCall& own) {
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  Digest digest;
  digest.add(words(own, std::string::npos));
  const auto options = at::TensorOptions(at::kLong).device(numbers_device(group));
  const at::Tensor hashes = gather_unrecorded(group, at::full({1}, digest.value(), options));
  const int64_t* const begin = hashes.const_data_ptr<int64_t>();
  const int64_t* const other = std::find_if(begin, begin + group.size(), [&](int64_t hash) { return hash != *begin; });
  if (other == begin + group.size()) return "";
  const auto calls = all_calls(group, words_with_source(own));
  return fmt::format(
      "[check] rank {} is about to {}, rank {} to {}. Every rank must make the same calls in the same "
      "order.",
      group.ranks[0], calls[0], group.ranks[other - begin], calls[other - begin]);
}

}  // namespace shardwise
