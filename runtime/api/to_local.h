// runtime/api/to_local.h: this rank's part of a distributed tensor, for what saves and prints it; to_local() itself is in dtensor.h.
//
// Nothing is sent, so one rank may call all of these alone. The pieces are aliased, and writes to them count as writes to the tensor: one
// after autograd saved the tensor is an error in the backward. A copied view's pieces are copies (runtime/tensor/view_link.h): they count
// for themselves, and nothing is brought back. Where its source was written to they are stale, and reading them is an error.
#pragma once

#include "runtime/api/dtensor.h"

namespace shardwise {

/// All pieces, without history. Throws: c10::ValueError, naming `reader`, where they are stale.
std::vector<at::Tensor> detached_pieces(const at::Tensor& tensor, const char* reader);

}  // namespace shardwise
