#include "runtime/comm/backend_traits.h"

#include <algorithm>
#include <string>

namespace shardwise {
namespace {

using RedOp = BackendTraits::RedOp;

bool is_plain(RedOp op) { return op == RedOp::SUM || op == RedOp::PRODUCT || op == RedOp::MIN || op == RedOp::MAX; }

/// NCCL has no 16-bit integers; Gloo's only unsigned integers are bytes.
bool is_common(c10::ScalarType dtype) {
  using c10::ScalarType;
  for (const auto known : {ScalarType::Byte, ScalarType::Char, ScalarType::Int, ScalarType::Long, ScalarType::Half,
                           ScalarType::BFloat16, ScalarType::Float, ScalarType::Double})
    if (dtype == known) return true;
  return false;
}

bool reduces_common(RedOp op, c10::ScalarType dtype) { return is_plain(op) && is_common(dtype); }

/// NCCL's avg of integers rounds, which no reduction of a dense tensor does.
bool reduces_nccl(RedOp op, c10::ScalarType dtype) {
  return reduces_common(op, dtype) || (op == RedOp::AVG && is_common(dtype) && c10::isFloatingType(dtype));
}

bool reduces_threads(RedOp, c10::ScalarType) { return true; }

}  // namespace

const std::vector<BackendTraits>& known_backends() {
  // name, connects at the first call, groups messages, names collectives, reduces, delivers
  static const std::vector<BackendTraits> known{{"gloo", false, false, false, reduces_common},
                                                {"nccl", true, true, true, reduces_nccl},
                                                {"threads", false, false, true, reduces_threads},
                                                {"threads-strict", true, true, true, reduces_nccl},
                                                {"fake", false, false, true, reduces_common, false}};
  return known;
}

BackendTraits traits_of(const c10d::Backend& backend) {
  const std::string name = backend.getBackendName();
  const auto found = std::ranges::find(known_backends(), std::string_view(name), &BackendTraits::name);
  return found != known_backends().end() ? *found
                                         : BackendTraits{"", false, backend.supportsCoalescing(), true, reduces_common};
}

}  // namespace shardwise
