#include "runtime/numbers/saved_elements.h"

#include <cerrno>
#include <cstring>
#include <stdexcept>
#include <string>
#include <vector>

#include <unistd.h>

namespace shardwise {
namespace {

constexpr int64_t kGapBytes = 1 << 10, kBufferBytes = 1 << 18;

void fill(int file, int64_t at, char* to, int64_t n_bytes) {
  while (n_bytes > 0) {
    const int64_t n = pread(file, to, static_cast<size_t>(n_bytes), at);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0)
      throw std::runtime_error(
          "[checkpoint] " + std::to_string(n_bytes) + " bytes from byte " + std::to_string(at) +
          " on cannot be read: " + (n == 0 ? "the file has become shorter" : std::strerror(errno)) +
          ". Take another save.");
    at += n, to += n, n_bytes -= n;
  }
}

}  // namespace

int64_t read_box(int file, int64_t begin, Indices sizes, Indices offsets, Indices lengths, int64_t element_bytes,
                 char* to) {
  std::vector<int64_t> strides(sizes.size());
  int64_t stride = element_bytes, run = element_bytes, n_runs = 1;
  size_t n_walked = 0;  // dims before those that a run covers
  for (size_t d = sizes.size(); d-- > 0; stride *= sizes[d]) {
    strides[d] = stride;
    begin += offsets[d] * stride;
    (n_walked == 0 ? run : n_runs) *= lengths[d];
    if (n_walked == 0 && lengths[d] != sizes[d]) n_walked = d;
  }
  const auto place = [&](int64_t index) {
    int64_t at = begin;
    for (size_t d = n_walked; d-- > 0;) {
      const int64_t outer = d == 0 ? 0 : index / lengths[d];
      at += (index - outer * lengths[d]) * strides[d];
      index = outer;
    }
    return at;
  };
  std::vector<char> buffer;
  int64_t n_read = 0;
  for (int64_t i = 0, next = 0; i < n_runs && run > 0; i = next) {
    const int64_t first = place(i);
    int64_t end = first + run;
    for (next = i + 1; next < n_runs; ++next) {
      const int64_t at = place(next);
      if (at - end >= kGapBytes || at + run - first > kBufferBytes) break;
      end = at + run;
    }
    if (next == i + 1) {
      fill(file, first, to + i * run, run);
    } else {
      buffer.resize(kBufferBytes);
      fill(file, first, buffer.data(), end - first);
      for (int64_t k = i; k < next; ++k)
        std::memcpy(to + k * run, buffer.data() + place(k) - first, static_cast<size_t>(run));
    }
    n_read += end - first;
  }
  return n_read;
}

}  // namespace shardwise
