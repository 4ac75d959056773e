#include "runtime/comm/caller.h"

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>

namespace shardwise {
namespace {

std::atomic<const CallerHooks*> caller_hooks{nullptr};

/// A question to the interpreter, asked by a separate thread because the interpreter's lock may never be released.
struct StackQuestion {
  std::mutex mutex;
  std::condition_variable answered;
  bool has_answer = false;
  CallerStack stack;
};

std::atomic<int> n_open_questions{0};

constexpr int kMaxOpenQuestions = 8;  // threads waiting for a lock that is never released
constexpr std::chrono::seconds kPatience{1};

}  // namespace

void set_caller_hooks(const CallerHooks* hooks) { caller_hooks.store(hooks, std::memory_order_release); }

std::string caller_line() {
  const CallerHooks* const hooks = caller_hooks.load(std::memory_order_acquire);
  return hooks ? hooks->program_line() : "";
}

CallerStack caller_stack(uint64_t thread) {
  const CallerHooks* const hooks = caller_hooks.load(std::memory_order_acquire);
  if (hooks == nullptr) return {{}, "", "a program without Python"};
  const CallerStack unknown{{}, "", "the interpreter's lock did not come free"};
  if (n_open_questions.load() >= kMaxOpenQuestions) return unknown;
  ++n_open_questions;
  const auto question = std::make_shared<StackQuestion>();
  std::thread([question, hooks, thread] {
    auto stack = hooks->stack(thread);
    {
      const std::lock_guard lock(question->mutex);
      question->stack = std::move(stack);
      question->has_answer = true;
    }
    question->answered.notify_all();
    --n_open_questions;
  }).detach();
  std::unique_lock lock(question->mutex);
  const bool is_known = question->answered.wait_for(lock, kPatience, [&] { return question->has_answer; });
  return is_known ? std::move(question->stack) : unknown;
}

}  // namespace shardwise
