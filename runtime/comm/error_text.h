// runtime/comm/error_text.h: an exception's text, to pass to another rank or another exception.
#pragma once

#include <c10/util/Exception.h>

#include <exception>
#include <string>

namespace shardwise {

/// The text without a backtrace.
inline std::string error_text(const std::exception& error) {
  const auto* const ours = dynamic_cast<const c10::Error*>(&error);
  return ours ? ours->what_without_backtrace() : error.what();
}

}  // namespace shardwise
