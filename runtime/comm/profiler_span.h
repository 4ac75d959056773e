// runtime/comm/profiler_span.h: a span in torch.profiler, if one is running.
#pragma once

#include <ATen/record_function.h>

#include <optional>
#include <string>
#include <utility>

namespace shardwise {

/// Appears in torch.profiler as `name()` during its lifetime, like torch.profiler.record_function().
/// Cost without a profiler: a thread-local read; `name` is not called.
class ProfilerSpan {
 public:
  template <class Name>
  explicit ProfilerSpan(const Name& name) {
    if (auto callbacks = at::getStepCallbacksUnlessEmpty(at::RecordScope::USER_SCOPE)) [[unlikely]] {
      span_.emplace(std::move(*callbacks));
      if (span_->isActive()) span_->before(std::string(name()));
    }
  }
  C10_DISABLE_COPY_AND_ASSIGN(ProfilerSpan);

 private:
  std::optional<at::RecordFunction> span_;
};

}  // namespace shardwise
