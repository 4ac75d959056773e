// runtime/numbers/saved_elements.h: boxes of tensors in files.
#pragma once

#include <cstdint>
#include <span>

namespace shardwise {

using Indices = std::span<const int64_t>;

/// Reads a box of a row-major tensor, whose elements begin at byte `begin` of a file, and returns the number of bytes read.
///
///   sizes [4, 6], offsets [1, 2], lengths [3, 2], 4 bytes each:  8 bytes at begin + 32, begin + 56 and begin + 80
///
/// Runs of the box are read straight into `to`, except that runs less than 1 KiB apart are read together, through a buffer of 256 KiB.
/// Throws: std::runtime_error if the file ends too soon or cannot be read.
int64_t read_box(int file, int64_t begin, Indices sizes, Indices offsets, Indices lengths, int64_t element_bytes,
                 char* to);

}  // namespace shardwise
