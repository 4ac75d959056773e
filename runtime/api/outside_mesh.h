// runtime/api/outside_mesh.h: what a rank outside a tensor's mesh gets where members get values.
#pragma once

namespace shardwise {

/// Process-wide, off at first; the same on all ranks. Where they are on, a rank outside the mesh goes on as in torch.distributed.tensor:
/// equal() gives it what the members found, for which all ranks of the world take part, and to_local() of a tensor without dims a zero.
/// Off, the first is an error there and the second an empty tensor: no value that nobody computed is used.
class AnswersOutside {
 public:
  static void set(bool are_on);
  static bool are_on();
};

}  // namespace shardwise
