// wrappers/rank_pieces.h: gathers the pieces that each rank of a mesh holds to all its ranks.
#pragma once

#include "runtime/tensor/device_mesh.h"

#include <c10/core/ScalarType.h>

#include <optional>
#include <string>
#include <vector>

namespace shardwise {

/// One rank's pieces of a tensor, without their values.
struct RankPieces {
  int64_t rank = 0;
  c10::ScalarType dtype = c10::ScalarType::Float;
  c10::DeviceType device_type = c10::DeviceType::CPU;
  std::optional<Dims> shape;   // of the whole tensor, if the caller passed it
  std::optional<Dims> stride;  // (elements)
  Dims piece_strides;          // of the first piece; empty without pieces
  std::vector<Box> boxes;
};

/// "[0:3, 0:16] [6:8, 0:16]", or "no pieces".
std::string list_of(c10::ArrayRef<Box> boxes);

/// The pieces of the members of `mesh`, in the order of its grid.
///
/// Members gather a few numbers over the mesh's group. If some ranks are outside the mesh, the first member also publishes the result in the
/// program's store. Outside ranks read it there; the last reader deletes it. So members never wait for outside ranks, which need not call. `topic`
/// names the call; calls with equal topics are matched by their order. With an empty topic, outside ranks do not read the result.
/// Throws: c10::ValueError on an outside rank if the program has no store.
std::vector<RankPieces> gather_pieces(const RankPieces& mine, const DeviceMesh& mesh, const std::string& topic);

}  // namespace shardwise
