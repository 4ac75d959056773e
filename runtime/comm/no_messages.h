// runtime/comm/no_messages.h: a guard for code that must not start a message.
//
//   at::Tensor to_local(const at::Tensor& tensor) {
//     const Reading guard("to_local");    // from here on, a Communication that begins throws an error that names both
#pragma once

#include "runtime/comm/comm_thread.h"

namespace shardwise {

/// During its lifetime, this thread may not begin a Communication: the attempt throws c10::Error with `name` and the communication's name.
/// Waiting for messages already in flight is allowed. Guards nest; the error names the outermost. `name` outlives the guard. Cost: two
/// stores.
class Reading {
 public:
  explicit Reading(const char* name) : thread_(comm_thread()), outer_(thread_.reader) {
    if (outer_ == nullptr) thread_.reader = name;
  }
  ~Reading() { thread_.reader = outer_; }
  Reading(const Reading&) = delete;
  Reading& operator=(const Reading&) = delete;

 private:
  CommThread& thread_;
  const char* outer_;
};

}  // namespace shardwise
