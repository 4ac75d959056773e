#include "wrappers/distributed_embedding/whole_tables.h"

#include "runtime/redistribute/packed_messages.h"

#include <ATen/ops/empty.h>

#include <algorithm>

namespace shardwise {
namespace {

Interval common(const Interval& one, const Interval& other) {
  const int64_t begin = std::max(one.begin, other.begin);
  return {begin, std::max(begin, std::min(one.end, other.end))};
}

}  // namespace

at::Tensor gathered_rows(const TableLanes& lanes, const TableMemory& memory, size_t t, Interval rows,
                         std::optional<int64_t> root) {
  const LayerTable& table = lanes.tables[t];
  const Group& group = *lanes.mesh->group();
  const int64_t own = lanes.own_rank(), width = table.spec->sizes()[1];
  const bool takes = !root || *root == own;
  const c10::Device device(lanes.mesh->device_type());
  const auto options = at::TensorOptions().dtype(table.spec->dtype()).device(device);
  at::Tensor result = takes ? at::empty({rows.length(), width}, options) : at::Tensor();
  if (table.is_replicated) {
    if (takes) result.copy_(memory.pieces(t)[0].values.narrow(0, rows.begin, rows.length()));
    return result;
  }
  PackedMessages messages(device);
  for (const LaneSlice& slice : table.slices) {
    const Interval part = common(slice.rows, rows);
    if (part.length() == 0 || slice.columns.length() == 0) continue;
    const at::Tensor place = takes ? result.narrow(0, part.begin - rows.begin, part.length())
                                         .narrow(1, slice.columns.begin, slice.columns.length())
                                   : at::Tensor();
    if (slice.rank == own) {
      const int64_t first_row = slice.first_row + part.begin - slice.rows.begin;
      // A block in a file is on the CPU.
      const at::Tensor held = memory.block(slice.lane).narrow(0, first_row, part.length()).to(device);
      for (int64_t rank = 0; rank < lanes.n_ranks(); ++rank)
        if (rank != own && (!root || *root == rank)) messages.send(group.ranks[static_cast<size_t>(rank)], held);
      if (takes) place.copy_(held);
    } else if (takes) {
      messages.receive(group.ranks[static_cast<size_t>(slice.rank)], place);
    }
  }
  messages.start(group);
  messages.finish();
  return result;
}

}  // namespace shardwise
