// runtime/comm/peer_memory.h: memory that the ranks of one machine share, so that a rank writes its results where another one reads them.
//
//   reader                                                        writer
//   rows = PeerMemory::shared(n_bytes)
//   name = PeerMemory::name_of(rows)        -- a message -->      there = peers.memory(reader, name)
//                                                                 writes to `there`
//   reads rows                              <-- a message --      Message{..., .n_bytes_there = n_bytes}
//
// Over Gloo, a message costs two copies and the work of the network's layers, even on one machine. A message of a few words then tells what is where.
#pragma once

#include "runtime/comm/group.h"

#include <ATen/core/Tensor.h>

#include <mutex>
#include <vector>

namespace shardwise {

/// Memory of a process, as other processes know it. Both numbers are in [0, 2^31); -1: memory that is not shared.
struct PeerName {
  int64_t descriptor = -1;
  int64_t number = -1;  // of the memory among all that the process made
};

class PeerMemory {
 public:
  /// Finds the members that can map this rank's memory, and whose memory it can map: those of one machine and one user, over Gloo.
  /// Collective over the group if it goes over Gloo: two gathers of a few numbers, which CommTrace leaves out.
  PeerMemory(const Group& group, c10::DeviceType device);

  /// True if this rank and the member `index` share memory. Equal on the two.
  bool shares(int64_t index) const { return shares_[static_cast<size_t>(index)]; }
  bool shares_any() const;

  /// New memory for other ranks: [n_bytes] uint8. It has no name in any file system, and is freed when the last process has dropped it.
  /// Throws: c10::Error if the system has none.
  static at::Tensor shared(int64_t n_bytes);
  /// The name of memory that shared() made, or of a part of it.
  static PeerName name_of(const at::Tensor& tensor);

  /// The memory of that name of a member, all of it: [bytes] uint8. The mapping is kept for the next call. Pre: shares(index), and the member
  /// holds the memory now.
  at::Tensor memory(int64_t index, const PeerName& name);

 private:
  struct Mapping {
    int64_t index, number;
    at::Tensor bytes;
    int64_t idle;  // calls since the last use
  };
  std::vector<bool> shares_;
  std::vector<int64_t> processes_;
  std::mutex mutex_;  // protects mappings_
  std::vector<Mapping> mappings_;
};

}  // namespace shardwise
