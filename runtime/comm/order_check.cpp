#include "runtime/comm/order_check.h"

#include "runtime/comm/backend_traits.h"
#include "runtime/comm/call_notes.h"
#include "runtime/comm/digest.h"
#include "runtime/comm/error_text.h"
#include "runtime/comm/group_backend.h"
#include "text/check.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>

namespace shardwise {
namespace {

constexpr size_t kTextBytes = 1024;  // per rank's call; the layouts of a longer one are cut

std::atomic<bool>& order_check() {
  static std::atomic<bool> is_on = [] {
    const char* const value = std::getenv("SHARDWISE_CHECK");
    return value != nullptr && std::strcmp(value, "1") == 0;
  }();
  return is_on;
}

/// The call that this rank is about to make.
struct OwnCall {
  /// "all_reduce for aten::mm (Float [4, 4] as [Partial(sum)] on (4))", with the layouts cut at the end so that it has at most `n_bytes`.
  std::string words(size_t n_bytes) const {
    const std::string dtype = call.dtype ? c10::toString(*call.dtype) : "";
    std::string text = call.name;
    if (call.length >= 0) text += fmt::format(" {} element{}", call.length, call.length == 1 ? "" : "s");
    if (!event.op.empty()) text += fmt::format(" for {}", event.op);
    if (event.layouts.empty() && call.dtype)
      text += fmt::format(" ({})", dtype);
    else if (!event.layouts.empty())
      text += event.layouts.starts_with(dtype) ? fmt::format(" ({})", event.layouts)
                                               : fmt::format(" ({}; sent as {})", event.layouts, dtype);
    if (text.size() > n_bytes) text.resize(n_bytes);
    return text;
  }

  /// words() and the program's line that makes the call.
  std::string words_with_source() const {
    const std::string source = event.source.empty() ? "" : fmt::format(" at {}", event.source);
    const size_t n_bytes = kTextBytes - 1;
    return words(n_bytes - std::min(n_bytes, source.size())) + source.substr(0, n_bytes);
  }

  const CommCall& call;
  const CommEvent& event;
};

/// How long a rank waits for the others to reach a call.
std::chrono::milliseconds check_limit() {
  static const auto limit = [] {
    constexpr double kDefault = 10;
    const char* const value = std::getenv("SHARDWISE_CHECK_SECONDS");
    if (value == nullptr || *value == '\0') return std::chrono::milliseconds(static_cast<int64_t>(kDefault * 1000));
    char* end = nullptr;
    const double seconds = std::strtod(value, &end);
    SW_CHECK_VALUE(*end == '\0' && seconds >= 0.001 && seconds <= 1e6,
                   "[check] SHARDWISE_CHECK_SECONDS is \"{}\", which is no number of seconds above 0. Give the time "
                   "that a rank may be late, such as 60.",
                   value);
    return std::chrono::milliseconds(static_cast<int64_t>(seconds * 1000));
  }();
  return limit;
}

/// Gathers flat `numbers`, which have one length on all ranks: [ranks, length] on the CPU. Waits at most for `limit` if the backend can;
/// with NCCL a timeout would end the process. Collective.
at::Tensor gather_within(const Group& group, const at::Tensor& numbers, std::chrono::milliseconds limit) {
  const auto backend = backend_of(group, "check", numbers.device().type());
  const at::Tensor gathered = at::empty({group.size(), numbers.numel()}, numbers.options());
  at::Tensor flat = gathered.view(-1), own = numbers;
  c10d::AllgatherOptions options;
  if (!traits_of(*backend).connects_at_first_call) options.timeout = limit;
  backend->_allgather_base(flat, own, options)->wait();
  return gathered.cpu();
}

/// The texts of all members' calls, by group order. Collective.
std::vector<std::string> all_calls(const Group& group, const std::string& own) {
  const at::Tensor bytes = at::zeros({static_cast<int64_t>(kTextBytes)}, at::kByte);
  std::memcpy(bytes.mutable_data_ptr(), own.data(), own.size());
  const at::Tensor rows = gather_within(group, bytes.to(numbers_device(group)), check_limit());
  std::vector<std::string> calls;
  for (int64_t i = 0; i < group.size(); ++i)
    calls.emplace_back(static_cast<const char*>(rows.const_data_ptr()) + i * kTextBytes);
  return calls;
}

/// Describes the members whose last note is of an earlier call, so that they do something else.
std::string describe_missing(const Group& group, uint64_t call) {
  const auto notes = read_notes(group.ranks, call, std::chrono::milliseconds(0));
  std::vector<int64_t> missing;
  std::vector<std::optional<CallNote>> theirs;
  for (size_t i = 0; i < notes.size(); ++i)
    if (static_cast<int64_t>(i) != group.index && (!notes[i] || notes[i]->call < call)) {
      missing.push_back(group.ranks[i]);
      theirs.push_back(notes[i]);
    }
  if (missing.empty()) return "all others have reached the call, and one of them has failed";
  return fmt::format("rank{} {} {} not reached it. Last calls: {}", missing.size() == 1 ? "" : "s",
                     fmt::join(missing, ", "), missing.size() == 1 ? "has" : "have",
                     describe_notes(missing, group.ranks[group.index], theirs));
}

/// gather_within(), with an error that names the ranks that do not arrive.
at::Tensor gather_hashes(const Group& group, const OwnCall& own, const at::Tensor& hash) {
  const std::string text = own.words_with_source();
  leave_note(group.ranks, {own.event.call, text});
  std::string why;
  try {
    return gather_within(group, hash, check_limit());
  } catch (const std::exception& error) {
    why = error_text(error);
  }
  SW_CHECK_WITH(DistBackendError, false,
                "[check] rank {} is about to {} as call {} of the ranks {}, but {}. Every rank must make the same "
                "calls in the same order. A slow rank has SHARDWISE_CHECK_SECONDS={} to reach the call. ({})",
                group.ranks[group.index], text, own.event.call, group.ranks, describe_missing(group, own.event.call),
                static_cast<double>(check_limit().count()) / 1000, why.substr(0, why.find('\n')));
}

}  // namespace

bool set_order_check(bool is_on) { return order_check().exchange(is_on); }

bool checks_order() { return order_check().load(std::memory_order_relaxed); }

std::string compare_calls(const Group& group, const CommCall& call, const CommEvent& event) {
  const OwnCall own{call, event};
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  Digest digest;
  digest.add(own.words(std::string::npos));
  const auto options = at::TensorOptions(at::kLong).device(numbers_device(group));
  const at::Tensor hashes = gather_hashes(group, own, at::full({1}, digest.value(), options));
  const int64_t* const begin = hashes.const_data_ptr<int64_t>();
  const int64_t* const other = std::find_if(begin, begin + group.size(), [&](int64_t hash) { return hash != *begin; });
  if (other == begin + group.size()) return "";
  const auto calls = all_calls(group, own.words_with_source());
  return fmt::format(
      "[check] rank {} is about to {}, rank {} to {}. Every rank must make the same calls in the same "
      "order.",
      group.ranks[0], calls[0], group.ranks[other - begin], calls[other - begin]);
}

}  // namespace shardwise
