// runtime/comm/profiler_span.h: a span of torch.profiler's, where one runs.
#pragma once

#include <ATen/record_function.h>

#include <optional>
#include <string>
#include <utility>

namespace shardwise {

/// Shown by torch.profiler as `name()` for the time of its life, as torch.profiler.record_function() is.
/// Cost where no profiler runs: a thread-local read; `name` is not called.
class ProfilerSpan {
 public:
  template <class Name>
  explicit ProfilerSpan(const Name& name) {
    if (auto callbacks = at::getStepCallbacksUnlessEmpty(at::RecordScope::USER_SCOPE)) [[unlikely]] {
      span_.emplace(std::move(*callbacks));
      if (span_->isActive()) span_->before(std::string(name()));
    }
  }
  ProfilerSpan(const ProfilerSpan&) = delete;
  ProfilerSpan& operator=(const ProfilerSpan&) = delete;

 private:
  std::optional<at::RecordFunction> span_;
};

}  // namespace shardwise
