#include "runtime/tensor/local_reads.h"

#include "runtime/comm/no_messages.h"
#include "text/check.h"

namespace shardwise {

const Shards& shards_read_by(const DTensorImpl& tensor, const char* reader) {
  SW_CHECK_VALUE(!tensor.is_stale(),
                 "[{}] reads this rank's values and sends nothing, but this tensor is a view whose values come from "
                 "other ranks, and its source has been written to. Call clone() on all ranks, and read the result.",
                 reader);
  if (tensor.is_ready()) return tensor.shards();
  const Reading guard(reader);
  return tensor.local_tensors();
}

}  // namespace shardwise
