// runtime/tensor/mapped_memory.h: CPU tensors whose memory is a file, for what is larger than RAM.
//
// The file has no name: it is taken out of its folder as soon as it is open. So its bytes belong to the tensors that use them, two programs
// cannot meet in one file, and whether a process returns, throws, is killed, or the machine stops: nothing is left in the folder, and the
// disk gets its space back. What shall outlive the process is saved by checkpoints, as of any other tensor.
//
// The system keeps pages of the file in RAM as long as there is room, and writes changed ones to the disk when it likes.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <string>

namespace shardwise {

/// Zeros of these sizes in a new file in `folder`. All of its space is taken on the disk here, so that no write fails later.
///
/// Throws: c10::ValueError where the folder does not exist or takes no file, where the disk has no room (both with the system's words),
/// and on systems other than Linux. Cost: no reads or writes where the file system can reserve space.
at::Tensor mapped_zeros(const std::string& folder, c10::IntArrayRef sizes, at::ScalarType dtype);

/// The folder of the file that holds a tensor's memory; nothing for memory that is no file, and for tensors without elements.
std::optional<std::string> mapped_folder(const at::Tensor& tensor);

}  // namespace shardwise
