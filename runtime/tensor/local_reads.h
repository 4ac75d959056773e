// runtime/tensor/local_reads.h: what one rank reads of a distributed tensor alone: printing, saving, to_local. Nothing is sent.
#pragma once

#include "runtime/tensor/dtensor_impl.h"

namespace shardwise {

/// The pieces, of whatever class they are, unless they are stale. Waits for pieces on their way.
/// Throws: c10::ValueError, naming `reader`, where DTensorImpl::is_stale().
const Shards& shards_read_by(const DTensorImpl& tensor, const char* reader);

}  // namespace shardwise
