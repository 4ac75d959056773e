// runtime/comm/peer_memory.h: memory that the ranks of one machine share, so that a rank writes its results where another one reads them.
//
//   reader                                                        writer
//   rows = peers.take(n_bytes)
//   name = peers.name_of(rows)              -- a message -->      there = peers.place(reader, name, begin, n_bytes)
//                                                                 writes to `there`
//   reads rows                              <-- a message --      Message{..., .n_bytes_there = n_bytes}
//
// Over Gloo, a message costs two copies and the work of the network's layers, even on one machine. The rule: ranks of one machine and one user whose
// messages go over Gloo share memory, if the system lets both of them map it. What such a rank gets from another one is written into a block that it
// take()s from its arena, and a message says so. Where it has no block (the arena is full, or the two do not share) the name is -1, so both ends know
// that the bytes themselves are sent.
//
// An arena is address space, of which the blocks in use take memory. Nothing is opened or mapped after the constructor, so nothing can fail in the
// midst of an exchange. When the last tensor over a block is gone, its memory goes back to the system, for all processes.
#pragma once

#include "runtime/comm/group.h"

#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

namespace shardwise {

class PeerMemory {
 public:
  static constexpr int64_t kMostBytes = int64_t{64} << 30;

  /// Makes this rank's arena, of at most `n_bytes` and twice the machine's memory, and maps those of the members that can map this one's. A process
  /// with a limit for the size of files (RLIMIT_FSIZE) shares nothing. Collective over the group if it goes over Gloo: two gathers of a few numbers,
  /// which CommTrace leaves out. Afterwards no descriptor is open.
  PeerMemory(const Group& group, c10::DeviceType device, int64_t n_bytes = kMostBytes);

  /// True if this rank and the member `index` share memory. Equal on the two.
  bool shares(int64_t index) const { return others_[static_cast<size_t>(index)].defined(); }
  bool shares_any() const;

  /// A block of the arena: [n_bytes] uint8. Undefined if the arena has no room, or if no member shares memory with this rank.
  /// Drop it when the exchange in which others write to it is over. If that failed (a rank was killed, or late), others may still write into this
  /// arena, also into blocks handed out since, and into no other memory. So blocks are for what others write in exchanges of this group alone: it is
  /// lost then, and nobody reads them.
  at::Tensor take(int64_t n_bytes) const;
  /// The name of a block, or of a part of it: a number in [0, 2^31). -1: other memory.
  int64_t name_of(const at::Tensor& tensor) const;

  /// Bytes of a block of the member `index`: [n_bytes] uint8, from byte `begin` of the block on. Pre: shares(index), and the member holds the block.
  /// Throws: c10::Error if they do not lie in the arena.
  at::Tensor place(int64_t index, int64_t name, int64_t begin, int64_t n_bytes) const;

 private:
  class Arena;
  std::shared_ptr<Arena> own_;      // its blocks keep it alive; null if no member shares memory
  std::vector<at::Tensor> others_;  // by member: all of its arena; undefined if it is not shared
};

}  // namespace shardwise
