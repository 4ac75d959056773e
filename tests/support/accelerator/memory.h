// tests/support/accelerator/memory.h: the devices' memory, and what was done to each block of it.
#pragma once

#include "tests/support/accelerator/accelerator.h"

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

namespace shardwise::accelerator {

/// How many launches of each stream (by number) are known to be over.
using Clock = std::map<int, uint64_t>;
void merge(Clock& clock, const Clock& other);

/// A launch, and how it touched a block.
struct PastAccess {
  Access access;
  std::string name;
  int stream;
  uint64_t launch;
  bool is_over(const Clock& clock) const;
};

/// Memory as the allocator gave it.
struct Block {
  const char* begin;
  int64_t n_bytes;
  c10::DeviceIndex device;
  int stream;              // on which it was allocated, and where it may be used again once freed
  std::set<int> recorded;  // record_stream
  std::vector<PastAccess> past;
};

/// True where both touch some byte.
bool overlap(const Access& a, const Access& b);
/// True where `inner` lies between the first and the last byte of `outer`, which has no gaps.
bool covers(const Access& outer, const Access& inner);

/// All blocks of all devices. Not thread-safe. Addresses are never used again, so a stale one is found.
class Memory {
 public:
  Memory();
  Block& allocate(int64_t n_bytes, c10::DeviceIndex device, int stream);
  void free(const Block& block);
  /// The block in which `address` lies, or null.
  Block* find(const void* address);
  void* host_address(const void* address) const;
  /// Whether device memory's own addresses are readable and writable.
  void set_accessible(bool is_accessible);

 private:
  int file_;
  char* device_pages_;  // without access
  char* host_pages_;    // the same bytes
  int64_t used_ = 0;
  std::map<const char*, Block> blocks_;  // by address
};

}  // namespace shardwise::accelerator
