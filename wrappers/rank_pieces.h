// wrappers/rank_pieces.h: what each rank of a mesh says of its pieces, told to all of them once.
#pragma once

#include "runtime/tensor/device_mesh.h"

#include <c10/core/ScalarType.h>

#include <optional>
#include <vector>

namespace shardwise {

/// One rank's pieces of a tensor, without their values.
struct RankPieces {
  int64_t rank = 0;
  c10::ScalarType dtype = c10::ScalarType::Float;
  c10::DeviceType device_type = c10::DeviceType::CPU;
  std::optional<Dims> shape;   // of the whole tensor, where the caller gave them
  std::optional<Dims> stride;  // (elements)
  Dims piece_strides;          // of the first piece; empty where there is none
  std::vector<Box> boxes;
};

/// What the members of `mesh` say, in the order of its grid.
///
/// Members: one gathering of a few numbers over the mesh's group. Where ranks stand outside the mesh the first member also
/// leaves the answer in the program's store, and a rank outside reads it there: members never wait for the others, and
/// nothing is asked of ranks that do not call. `topic` names the call; equal topics are told apart by their number.
/// Throws: c10::ValueError on a rank outside where the program has no store.
std::vector<RankPieces> tell_pieces(const RankPieces& mine, const DeviceMesh& mesh, const std::string& topic);

}  // namespace shardwise
