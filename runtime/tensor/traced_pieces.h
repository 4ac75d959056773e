// runtime/tensor/traced_pieces.h: pieces that are a tracer's, and have no values.
#pragma once

#include "runtime/comm/tracing.h"
#include "runtime/tensor/shards.h"
#include "runtime/tensor/subclass.h"

namespace shardwise {

/// True where the pieces are a tracer's: operators then come to Python first, and from there to us (python/shardwise/_tracing.py). Of a rank
/// without pieces, where a tracer is on.
inline bool is_traced(const Shards& pieces) {
  if (pieces.empty()) return is_tracing();
  return pieces[0].key_set().has(c10::DispatchKey::Python) && !is_subclass(pieces[0]);
}

}  // namespace shardwise
