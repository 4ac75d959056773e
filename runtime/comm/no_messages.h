// runtime/comm/no_messages.h: a part of the program that starts no message, however it is reached.
//
//   at::Tensor to_local(const at::Tensor& tensor) {
//     const Reading guard("to_local");    // a Communication that begins from here on is an error that names both
#pragma once

#include "runtime/comm/comm_thread.h"

namespace shardwise {

/// While it lives, this thread begins no Communication: one that tries throws c10::Error with `name` and the communication's. Readers
/// may wait for messages that are under way. Guards nest; the outermost one is named. `name` outlives the guard. Cost: two stores.
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
