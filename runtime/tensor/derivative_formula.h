// runtime/tensor/derivative_formula.h: from an autograd kernel of ours to torch's own derivative formula.
#pragma once

#include <c10/core/DispatchKeySet.h>

namespace shardwise {

/// The keys with which a kernel of kAutogradKey redispatches to torch's formula, registered under AutogradOther.
inline c10::DispatchKeySet formula_keys(c10::DispatchKeySet keys) {
  return keys.remove(c10::DispatchKey::AutogradFunctionality).add(c10::DispatchKey::AutogradOther);
}

}  // namespace shardwise
