// runtime/tensor/registrations.h: kernels registered with torch's dispatcher for the lifetime of the process.
#pragma once

#include <torch/library.h>

namespace shardwise {

/// A library of kernels under `key` for the operators of namespace `ns`; "_" for a fallback for all operators. Never destroyed.
inline torch::Library& registrations(const char* ns, c10::DispatchKey key) {
  return *new torch::Library(torch::Library::IMPL, ns, key, __FILE__, __LINE__);
}

}  // namespace shardwise
