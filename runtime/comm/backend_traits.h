// runtime/comm/backend_traits.h: what each c10d backend can do: the one place that knows backends by name.
#pragma once

#include <c10/core/ScalarType.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <string_view>
#include <vector>

namespace shardwise {

struct BackendTraits {
  using RedOp = c10d::ReduceOp::RedOpType;

  std::string_view name;  // as getBackendName() gives it; "" of one that is not known
  /// The first call on a group makes its communicator, and every member must make that call: afterwards sends and receives need
  /// their two ends alone. The backend counts its collectives (getSequenceNumberForGroup).
  bool connects_at_first_call;
  /// The calls of a rank run one after another, each when the other ranks run theirs. Sends and receives that belong together go between
  /// startCoalescing() and endCoalescing(): one by one they would wait for each other.
  bool groups_messages;
  /// Collectives of ranks that meet and differ are errors, or wait for each other. Otherwise values may be wrong or the process may end,
  /// while messages are matched by their tags.
  bool names_collectives;
  /// Whether all_reduce has `op` for `dtype`.
  bool (*reduces)(RedOp op, c10::ScalarType dtype);
};

/// An unknown backend is assumed to coalesce if it supports that, and to reduce what every known backend does.
BackendTraits traits_of(const c10d::Backend& backend);

/// Those that are known.
const std::vector<BackendTraits>& known_backends();

}  // namespace shardwise
