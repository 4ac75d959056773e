// runtime/tensor/traced_pieces.h: whether pieces belong to a tracer and have no values.
#pragma once

#include "runtime/comm/tracing.h"
#include "runtime/tensor/spec.h"
#include "runtime/tensor/subclass.h"

namespace shardwise {

/// True if the pieces are a tracer's: operators then go to Python first, and from there to us (python/shardwise/_tracing.py). On a rank
/// without pieces: true if a tracer is active.
inline bool is_traced(const Shards& pieces) {
  if (pieces.empty()) return is_tracing();
  return pieces[0].key_set().has(c10::DispatchKey::Python) && !is_subclass(pieces[0]);
}

}  // namespace shardwise
