// wrappers/fsdp/gathered_memory.h: one block of memory for whole tensors, gathered from the parts that each rank has.
//
//   GatheredMemory memory(device);
//   memory.add({{split, {10, 3}, {3, 1}, at::kFloat}});   // tensor 0: no values yet
//   GatheredMemory::start(ranks, {{memory, {own_part}}});  // one exchange: each rank sends its parts of all tensors to the other ranks
//   memory.finish();                                     // memory.tensor(0) has the values
//   memory.release();                                    // reading it is an error until the next start()
//
// Tensors begin at multiples of 64 bytes. They may be of different dtypes.
#pragma once

#include "wrappers/fsdp/sharded_parameter.h"

#include "runtime/redistribute/packed_messages.h"

#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

namespace shardwise {

/// A tensor to be gathered: how it is split over the ranks, and the layout of the whole tensor in memory.
struct GatheredLayout {
  Split split;
  Dims sizes, strides;
  c10::ScalarType dtype;
};

/// `n_bytes` rounded up to a multiple of a cache line, where the next tensor begins.
constexpr size_t aligned(size_t n_bytes) { return (n_bytes + 63) / 64 * 64; }

/// Allocates the memory of a storage, also for storages outside a GatheredMemory.
void allocate_storage(c10::StorageImpl& storage);
/// Frees the memory of a storage, whose size stays; reading it is an error. Returns false, and frees nothing, if torch cannot refuse reads.
bool release_storage(c10::StorageImpl& storage);

class GatheredMemory {
 public:
  explicit GatheredMemory(c10::Device device);

  /// Appends tensors. Pre: nothing is gathered. Values of earlier gathers are lost.
  void add(std::vector<GatheredLayout> layouts);
  size_t size() const { return layouts_.size(); }
  c10::Device device() const { return memory_.device(); }
  const c10::Storage& storage() const { return memory_; }
  /// The size of the memory.
  size_t n_bytes() const { return n_bytes_; }
  /// A new tensor over the memory of tensor `number`. Shapes: as its layout.
  at::Tensor tensor(size_t number) const;

  /// A memory, and what this rank sends by tensor: its part, in the tensor's dtype, or memory.slices().
  struct Gather {
    GatheredMemory& memory;
    std::vector<at::Tensor> own;
  };
  /// Allocates the memories, which are on one device, and starts one exchange for all of them. Collective over `ranks`.
  static void start(const Group& ranks, const std::vector<Gather>& gathers);
  void finish();
  /// Frees the memory; waits first for a gather in progress.
  void release();

  /// Keeps a slice of each whole tensor: each of `n_ranks` consecutive ranks keeps a different one. Pre: the tensors are gathered.
  void keep_slices(const Group& ranks, int64_t n_ranks);
  bool has_slices() const { return !slices_.empty(); }
  const std::vector<at::Tensor>& slices() const { return slices_; }
  void drop_slices() { slices_.clear(); }

 private:
  /// The members that have parts of the tensors: all of `ranks`, or if has_slices() a few consecutive ones.
  ShardRange members(const Group& ranks) const;
  /// The part of tensor `number` that comes from `member`.
  at::Tensor part_from(const Group& ranks, int64_t member, size_t number) const;

  std::vector<GatheredLayout> layouts_;
  std::vector<size_t> offsets_;  // bytes
  std::vector<at::Tensor> wholes_;
  c10::Storage memory_;
  size_t n_bytes_ = 0;
  bool has_memory_ = false;
  std::shared_ptr<PackedMessages> messages_;  // of the last start()
  std::vector<at::Tensor> slices_;            // kept slices, by tensor; or empty
  int64_t n_slices_ = 0;                      // slices per whole tensor
};

}  // namespace shardwise
