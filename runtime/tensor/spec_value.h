// runtime/tensor/spec_value.h: a spec as an IValue, for autograd functions to keep from forward to backward.
#pragma once

#include "runtime/tensor/spec.h"

#include <ATen/core/ivalue.h>

namespace shardwise {

inline c10::IValue to_value(const SpecPtr& spec) { return c10::IValue::make_capsule(spec); }

/// The inverse of to_value. Pre: `value` is a result of to_value().
inline SpecPtr to_spec(const c10::IValue& value) {
  const auto held = value.toCapsule();
  return SpecPtr::reclaim_copy(static_cast<Spec*>(held.get()));
}

}  // namespace shardwise
