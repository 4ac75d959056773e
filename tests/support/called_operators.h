// tests/support/called_operators.h: counts calls of an operator, on distributed tensors and on their pieces.
#pragma once

#include <ATen/record_function.h>

#include <cstdint>
#include <string>

namespace shardwise {

/// The calls of operator `name` ("aten::div") that `work` makes on this thread.
template <class Work>
int64_t calls_of(const std::string& name, const Work& work) {
  static thread_local std::string counted;
  static thread_local int64_t n_calls;
  counted = name, n_calls = 0;
  const auto on_call = [](const at::RecordFunction& call) -> std::unique_ptr<at::ObserverContext> {
    n_calls += counted == call.name() ? 1 : 0;
    return nullptr;
  };
  const auto handle =
      at::addThreadLocalCallback(at::RecordFunctionCallback(on_call).scopes({at::RecordScope::FUNCTION}));
  work();
  at::removeCallback(handle);
  return n_calls;
}

}  // namespace shardwise
