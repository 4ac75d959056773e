// runtime/tensor/registrations.h: kernels registered with torch's dispatcher, for good or until another one takes their place.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

#include <algorithm>
#include <string>

namespace shardwise {

/// A library of kernels under `key` for the operators of namespace `ns`; "_" for a fallback for all operators. Never destroyed.
inline torch::Library& registrations(const char* ns, c10::DispatchKey key) {
  return *new torch::Library(torch::Library::IMPL, ns, key, __FILE__, __LINE__);
}

/// Registers `kernel` for `op`, until give_way() removes it.
void register_default(const c10::OperatorHandle& op, c10::DispatchKey key, c10::KernelFunction kernel);

/// True if `op` has a default kernel.
bool has_default(const std::string& op, c10::DispatchKey key);

/// Removes the default kernel of `op` ("aten::embedding"), if it has one, so that another can be registered: torch warns of two.
void give_way(const std::string& op, c10::DispatchKey key);

/// The keys with which a kernel of kAutogradKey redispatches to torch's formula, which is registered under AutogradOther. Keys above
/// autograd, such as those that hold the state of Python's dispatch modes, have already been handled.
inline c10::DispatchKeySet formula_keys(c10::DispatchKeySet keys) {
  return (keys & c10::after_autograd_keyset).add(c10::DispatchKey::AutogradOther);
}

/// True if a result is a view of an argument.
inline bool gives_view(const c10::FunctionSchema& schema) {
  return std::ranges::any_of(schema.returns(), [](const c10::Argument& result) {
    return result.alias_info() && !result.alias_info()->isWrite();
  });
}

}  // namespace shardwise
