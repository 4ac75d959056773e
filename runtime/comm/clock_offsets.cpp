#include "runtime/comm/clock_offsets.h"

#include "runtime/comm/agreement.h"
#include "runtime/comm/digest.h"

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

/// A hash of this machine's boot. Ranks in two containers of one machine share a clock but may have different host names.
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

}  // namespace

int64_t clock_offset(c10::IntArrayRef first, c10::IntArrayRef other) {
  int64_t least = std::numeric_limits<int64_t>::min(), most = std::numeric_limits<int64_t>::max();
  for (size_t i = 0; i < first.size(); i += 2) {
    least = std::max(least, other[i] - first[i + 1]);
    most = std::min(most, other[i + 1] - first[i]);
  }
  return least + (most - least) / 2;
}

std::vector<int64_t> clock_offsets(const Group& group) {
  if (group.size() == 1) return {0};
  std::vector<int64_t> own{machine_digest()};
  for (int64_t i = 0; i < kBarriers; ++i) {
    own.push_back(c10::getTime());
    gather_alike(group, "align clocks", {i});
    own.push_back(c10::getTime());
  }
  const auto all = gather_alike(group, "align clocks", own);
  const auto times_of = [](const std::vector<int64_t>& row) { return c10::IntArrayRef(row).slice(1); };
  std::vector<int64_t> offsets;
  for (const auto& row : all) {
    const bool is_one_machine = row[0] == all[0][0];
    offsets.push_back(is_one_machine ? 0 : clock_offset(times_of(all[0]), times_of(row)));
  }
  return offsets;
}

}  // namespace shardwise
