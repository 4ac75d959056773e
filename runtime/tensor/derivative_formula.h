// runtime/tensor/derivative_formula.h: from an autograd kernel of ours to torch's own derivative formula.
#pragma once

#include <c10/core/DispatchKeySet.h>

namespace shardwise {

/// The keys with which a kernel of kAutogradKey redispatches to torch's formula, registered under AutogradOther. Keys above autograd,
/// such as those by which Python's dispatch modes keep their state, have had their turn.
inline c10::DispatchKeySet formula_keys(c10::DispatchKeySet keys) {
  return (keys & c10::after_autograd_keyset).add(c10::DispatchKey::AutogradOther);
}

}  // namespace shardwise
