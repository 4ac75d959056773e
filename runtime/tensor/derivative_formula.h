// runtime/tensor/derivative_formula.h: redispatch from our autograd kernels to torch's own derivative formulas.
#pragma once

#include <c10/core/DispatchKeySet.h>

namespace shardwise {

/// The keys with which a kernel of kAutogradKey redispatches to torch's formula, which is registered under AutogradOther. Keys above
/// autograd, such as those that hold the state of Python's dispatch modes, have already been handled.
inline c10::DispatchKeySet formula_keys(c10::DispatchKeySet keys) {
  return (keys & c10::after_autograd_keyset).add(c10::DispatchKey::AutogradOther);
}

}  // namespace shardwise
