// runtime/api/outside_mesh.h: results that ranks outside a tensor's mesh get for operations that give members values.
#pragma once

namespace shardwise {

/// A process-wide switch, off by default, that must be the same on all ranks. On: a rank outside the mesh behaves as in
/// torch.distributed.tensor. equal() returns what the members found, and all ranks of the world take part in it; to_local() of a 0-dim
/// tensor returns a zero. Off: equal() is an error there and to_local() returns an empty tensor, so no value is used that nobody computed.
class AnswersOutside {
 public:
  static void set(bool are_on);
  static bool are_on();
};

}  // namespace shardwise
