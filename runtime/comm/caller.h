// runtime/comm/caller.h: the line of the program that called into this library. Only the Python bindings can find it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace shardwise {

/// The Python stack of a thread.
struct CallerStack {
  std::vector<std::string> lines;  // "train.py:12 in step", the innermost first
  std::string program_line;        // the first line outside of torch and this package, or ""
  std::string why_unknown;         // "" if it is known
};

/// Functions of the Python bindings. Each waits for the interpreter's lock.
struct CallerHooks {
  std::string (*program_line)();          // of this thread
  CallerStack (*stack)(uint64_t thread);  // of another thread, a pthread_t
};
/// `hooks` lives as long as the process.
void set_caller_hooks(const CallerHooks* hooks);

/// The line of the program that this thread is in: "train.py:12 in step". "" without hooks, as in a C++ program.
std::string caller_line();

/// The stack of `thread`. Unknown without hooks, or if the interpreter's lock is not free within a second.
CallerStack caller_stack(uint64_t thread);

}  // namespace shardwise
