// runtime/tensor/local_reads.h: reads of a distributed tensor that one rank may do alone: printing, saving, to_local. Nothing is sent.
#pragma once

#include "runtime/tensor/dtensor_impl.h"

namespace shardwise {

/// The pieces, of any class. Waits for pieces in flight.
/// Throws: c10::ValueError, naming `reader`, if DTensorImpl::is_stale().
const Shards& shards_read_by(const DTensorImpl& tensor, const char* reader);

}  // namespace shardwise
