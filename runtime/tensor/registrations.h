// runtime/tensor/registrations.h: kernels registered with torch's dispatcher, for good or until another one takes their place.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

#include <string>

namespace shardwise {

/// A library of kernels under `key` for the operators of namespace `ns`; "_" for a fallback for all operators. Never destroyed.
inline torch::Library& registrations(const char* ns, c10::DispatchKey key) {
  return *new torch::Library(torch::Library::IMPL, ns, key, __FILE__, __LINE__);
}

/// Registers `kernel` for `op`, until give_way() removes it.
void register_default(const c10::OperatorHandle& op, c10::DispatchKey key, c10::KernelFunction kernel);

/// Removes the default kernel of `op` ("aten::embedding"), if it has one, so that another can be registered: torch warns of two.
void give_way(const std::string& op, c10::DispatchKey key);

}  // namespace shardwise
