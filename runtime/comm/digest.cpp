#include "runtime/comm/digest.h"

#include <algorithm>
#include <cstring>

namespace shardwise {
namespace {

/// splitmix64's output function (Steele, Lea and Flood, 2014): a bijection, so that no word is lost.
uint64_t mixed(uint64_t word) {
  word = (word ^ (word >> 30)) * 0xbf58476d1ce4e5b9;
  word = (word ^ (word >> 27)) * 0x94d049bb133111eb;
  return word ^ (word >> 31);
}

}  // namespace

void Digest::add(const void* data, size_t n_bytes) {
  state_ = mixed(state_ + 0x9e3779b97f4a7c15 + n_bytes);
  const auto* next = static_cast<const char*>(data);
  for (size_t left = n_bytes; left > 0;) {
    const size_t n = std::min(left, sizeof(uint64_t));
    uint64_t word = 0;
    std::memcpy(&word, next, n);
    state_ = mixed(state_ + 0x9e3779b97f4a7c15) ^ word;
    next += n;
    left -= n;
  }
  state_ = mixed(state_);
}

}  // namespace shardwise
