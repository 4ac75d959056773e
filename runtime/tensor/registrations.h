// runtime/tensor/registrations.h: kernels registered with torch's dispatcher for as long as the process lives.
#pragma once

#include <torch/library.h>

namespace shardwise {

/// A library of kernels under `key` for the operators of namespace `ns`; "_" for a fallback of all. Never destroyed.
inline torch::Library& registrations(const char* ns, c10::DispatchKey key) {
  return *new torch::Library(torch::Library::IMPL, ns, key, __FILE__, __LINE__);
}

}  // namespace shardwise
