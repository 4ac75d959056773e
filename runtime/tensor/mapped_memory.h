// runtime/tensor/mapped_memory.h: CPU tensors in memory-mapped files, for data larger than RAM.
//
// The file has no name: it is unlinked as soon as it is open. So its data belongs to the tensors that use it, and two programs cannot share
// a file by accident. When the process returns, throws or is killed, or the machine stops, nothing is left in the folder and the disk space
// is freed. Checkpoints save the tensors like any others.
//
// The system caches pages of the file in RAM while there is room, and writes changed pages to the disk when it likes.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <string>

namespace shardwise {

/// Zeros of these sizes in a new file in `folder`. All disk space is allocated here, so that no later write fails.
///
/// Throws: c10::ValueError if the folder does not exist or no file can be made in it, if the disk is full, both with the system's
/// message. Cost: no reads or writes if the file system can reserve space.
at::Tensor mapped_zeros(const std::string& folder, c10::IntArrayRef sizes, at::ScalarType dtype);

/// The folder of the file that holds a tensor's memory; nothing if the memory is not a file or the tensor has no elements.
std::optional<std::string> mapped_folder(const at::Tensor& tensor);

}  // namespace shardwise
