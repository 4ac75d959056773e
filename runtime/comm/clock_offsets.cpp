#include "runtime/comm/clock_offsets.h"

#include "runtime/comm/digest.h"
#include "runtime/comm/group_backend.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/tensor.h>
#include <c10/util/ApproximateClock.h>

#include <unistd.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <limits>
#include <string>

namespace shardwise {
namespace {

constexpr int64_t kBarriers = 16;

/// Of this machine since it was started: ranks in two containers of one machine share a clock and need not share a name.
int64_t machine_digest() {
  Digest digest;
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  if (boot.empty()) {
    std::array<char, 256> name{};
    gethostname(name.data(), name.size() - 1);
    boot = name.data();
  }
  digest.add(boot);
  return digest.value();
}

at::Tensor gather_times(const Group& group, const std::vector<int64_t>& own) {
  return gather_rows(group, "align clocks", at::tensor(own, at::TensorOptions(at::kLong)).to(numbers_device(group)));
}

}  // namespace

int64_t clock_offset(const BarrierTimes& first, const BarrierTimes& other) {
  int64_t least = std::numeric_limits<int64_t>::min(), most = std::numeric_limits<int64_t>::max();
  for (size_t i = 0; i < first.entered.size(); ++i) {
    least = std::max(least, other.entered[i] - first.left[i]);
    most = std::min(most, other.left[i] - first.entered[i]);
  }
  return least + (most - least) / 2;
}

std::vector<int64_t> clock_offsets(const Group& group) {
  if (group.size() == 1) return {0};
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  std::vector<int64_t> own{machine_digest()};
  for (int64_t i = 0; i < kBarriers; ++i) {
    own.push_back(c10::getTime());
    gather_times(group, {i});
    own.push_back(c10::getTime());
  }
  const at::Tensor all = gather_times(group, own);
  const auto times_of = [&](int64_t index) {
    const int64_t* const row = all.const_data_ptr<int64_t>() + index * all.size(1) + 1;
    BarrierTimes times;
    for (int64_t i = 0; i < kBarriers; ++i) {
      times.entered.push_back(row[2 * i]);
      times.left.push_back(row[2 * i + 1]);
    }
    return times;
  };
  std::vector<int64_t> offsets;
  const BarrierTimes first = times_of(0);
  const int64_t machine = *all.const_data_ptr<int64_t>();
  for (int64_t i = 0; i < group.size(); ++i) {
    const bool is_one_machine = all.const_data_ptr<int64_t>()[i * all.size(1)] == machine;
    offsets.push_back(is_one_machine ? 0 : clock_offset(first, times_of(i)));
  }
  return offsets;
}

}  // namespace shardwise
