// runtime/comm/caller.h: where the program is that called into this library. C++ cannot say; the Python bindings can.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace shardwise {

/// Where a thread is.
struct CallerStack {
  std::vector<std::string> lines;  // "train.py:12 in step", the innermost first
  std::string program_line;        // the first of them outside of torch and of this package, or ""
  std::string why_unknown;         // "" where it is known
};

/// Installed by the Python bindings; each waits for the interpreter's lock.
struct CallerHooks {
  std::string (*program_line)();          // of this thread
  CallerStack (*stack)(uint64_t thread);  // of another one, a pthread_t
};
/// `hooks` lives as long as the process.
void set_caller_hooks(const CallerHooks* hooks);

/// The line of the program that this thread is in: "train.py:12 in step". "" without hooks, as in a C++ program.
std::string caller_line();

/// Unknown without hooks, and where the interpreter's lock cannot be had within a second.
CallerStack caller_stack(uint64_t thread);

}  // namespace shardwise
