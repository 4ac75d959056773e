#include "runtime/numbers/saved_elements.h"

#include <cerrno>
#include <cstring>
#include <stdexcept>
#include <string>
#include <vector>

#include <unistd.h>
#ifdef __x86_64__
#include <immintrin.h>
#endif

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

#ifdef __x86_64__
namespace {

__attribute__((target("pclmul"))) __m128i folded(__m128i state, int64_t low, int64_t high, __m128i next) {
  const __m128i by = _mm_set_epi64x(high, low);
  return _mm_clmulepi64_si128(state, by, 0x00) ^ _mm_clmulepi64_si128(state, by, 0x11) ^ next;
}

}  // namespace

/// Gopal and others, Fast CRC Computation for Generic Polynomials Using PCLMULQDQ Instruction (2009): four lanes of 16 bytes, folded into one with
/// the same remainder.
__attribute__((target("pclmul"))) uint32_t crc32(uint32_t crc, const char* bytes, int64_t n_bytes) {
  uint32_t state = ~crc;
  const auto add = [&state](const char* from, int64_t n) {
    for (const char* at = from; at < from + n; ++at) {
      state ^= static_cast<uint8_t>(*at);
      for (int bit = 0; bit < 8; ++bit) state = state >> 1 ^ (state & 1 ? 0xedb88320 : 0);
    }
  };
  if (n_bytes >= 64) {
    __m128i lanes[4];
    const auto load = [&](int lane) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(bytes) + lane); };
    for (int i = 0; i < 4; ++i) lanes[i] = load(i);
    lanes[0] ^= _mm_cvtsi32_si128(static_cast<int>(state));
    for (bytes += 64; n_bytes >= 128; n_bytes -= 64, bytes += 64)
      for (int i = 0; i < 4; ++i) lanes[i] = folded(lanes[i], 0x154442bd4, 0x1c6e41596, load(i));
    for (int i = 1; i < 4; ++i) lanes[i] = folded(lanes[i - 1], 0x1751997d0, 0x0ccaa009e, lanes[i]);
    state = 0;
    add(reinterpret_cast<const char*>(&lanes[3]), 16);
    n_bytes -= 64;
  }
  add(bytes, n_bytes);
  return ~state;
}
#endif

}  // namespace shardwise
