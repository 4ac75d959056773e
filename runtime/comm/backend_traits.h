// runtime/comm/backend_traits.h: the capabilities of each c10d backend. No other code asks for backends by name.
#pragma once

#include <c10/core/ScalarType.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <string_view>
#include <vector>

namespace shardwise {

struct BackendTraits {
  using RedOp = c10d::ReduceOp::RedOpType;

  std::string_view name;  // the value of getBackendName(); "" for an unknown backend
  /// The first call on a group creates its communicator, and every member must make that call. Later sends and receives involve their two
  /// ends only. The backend counts its collectives (getSequenceNumberForGroup).
  bool connects_at_first_call;
  /// A rank's calls run one after another, each when the other ranks run theirs. Sends and receives that belong together must be between
  /// startCoalescing() and endCoalescing(); issued one by one they would wait for each other.
  bool groups_messages;
  /// If ranks meet in different collectives, this is an error or a hang. If false, values may be wrong or the process may end, so messages
  /// are matched by their tags instead.
  bool names_collectives;
  /// Whether all_reduce supports `op` for `dtype`.
  bool (*reduces)(RedOp op, c10::ScalarType dtype);
  /// False for torch's fake groups, whose other ranks do not exist: what they would send counts as zeros.
  bool delivers = true;
};

/// For an unknown backend: assumes that it coalesces if it supports that, and that it reduces what every known backend reduces.
BackendTraits traits_of(const c10d::Backend& backend);

/// The traits of all known backends.
const std::vector<BackendTraits>& known_backends();

}  // namespace shardwise
