// wrappers/fsdp/gathered_memory.h: one piece of memory in which whole tensors are gathered, of which each rank has parts.
//
//   GatheredMemory memory(device);
//   memory.add({{split, {10, 3}, {3, 1}, at::kFloat}});   // tensor 0: no values yet
//   memory.start(ranks, {own_part});                     // one exchange: each rank sends its parts of all tensors to the others
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

/// A tensor to be gathered: who has which part of it, and how the whole lies in memory.
struct GatheredLayout {
  Split split;
  Dims sizes, strides;
  c10::ScalarType dtype;
};

/// `n_bytes` up to the end of a line of the cache, where the next tensor begins.
constexpr size_t aligned(size_t n_bytes) { return (n_bytes + 63) / 64 * 64; }

/// For storages outside that are freed with the memory of a group.
void allocate_storage(c10::StorageImpl& storage);
/// Returns false, and frees nothing, where torch cannot refuse reads of it.
bool release_storage(c10::StorageImpl& storage);

class GatheredMemory {
 public:
  explicit GatheredMemory(c10::Device device);

  /// Adds tensors behind those that are there. Pre: nothing is gathered. Values of earlier gathers are lost.
  void add(std::vector<GatheredLayout> layouts);
  size_t size() const { return layouts_.size(); }
  c10::Device device() const { return memory_.device(); }
  const c10::Storage& storage() const { return memory_; }
  /// Another tensor of the memory of tensor `number`. Shapes: as its layout.
  at::Tensor tensor(size_t number) const;

  /// Allocates, and sends this rank's parts: `own[number]`, of the tensor's dtype; with slices() these, and `own` is not read. Collective over `ranks`.
  void start(const Group& ranks, const std::vector<at::Tensor>& own);
  void finish();
  /// Frees the memory, on its way or there.
  void release();

  /// Keeps, of `n_ranks` ranks that follow each other, each a different slice of what was gathered. Pre: it has been gathered.
  void keep_slices(const Group& ranks, int64_t n_ranks);
  bool has_slices() const { return !slices_.empty(); }
  void drop_slices() { slices_.clear(); }

 private:
  std::vector<GatheredLayout> layouts_;
  std::vector<size_t> offsets_;  // bytes
  std::vector<at::Tensor> wholes_;
  c10::Storage memory_;
  size_t n_bytes_ = 0;
  bool has_memory_ = false;
  std::unique_ptr<PackedMessages> messages_;
  std::vector<at::Tensor> slices_;  // that were kept, by tensor, or none
  int64_t n_slices_ = 0;            // of a whole tensor
};

}  // namespace shardwise
