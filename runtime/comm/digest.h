// runtime/comm/digest.h: a hash that ranks compare instead of the data itself.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace shardwise {

/// A hash of everything added, in order. Equal in every process, which std::hash does not guarantee. Cost: one pass.
class Digest {
 public:
  void add(const void* data, size_t n_bytes);
  void add(std::string_view text) { add(text.data(), text.size()); }
  void add(int64_t number) { add(&number, sizeof number); }
  int64_t value() const { return static_cast<int64_t>(state_); }

 private:
  uint64_t state_ = 0;
};

}  // namespace shardwise
