#include "runtime/comm/waiting.h"

#include "runtime/comm/comm_trace.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdlib>
#include <mutex>
#include <string>
#include <thread>
#include <unordered_set>

namespace shardwise {

/// All waits of the process, and the thread that looks at them from time to time.
class WaitWatch {
 public:
  using Seconds = std::chrono::duration<double>;

  static WaitWatch& instance() {
    static auto* watch = new WaitWatch;  // its thread may outlive main()
    return *watch;
  }

  void add(Waiting* wait) {
    if (limit_.count() <= 0) return;
    const std::lock_guard lock(mutex_);
    if (waits_.empty() && !is_started_) start();
    waits_.insert(wait);
  }
  void remove(Waiting* wait) {
    if (limit_.count() <= 0) return;
    const std::lock_guard lock(mutex_);
    waits_.erase(wait);
  }

 private:
  WaitWatch() {
    const char* const value = std::getenv("SHARDWISE_WAIT_WARNING");
    limit_ = Seconds(value ? std::strtod(value, nullptr) : 30);
  }

  void start() {
    is_started_ = true;
    std::thread([this] {
      for (;;) {
        std::this_thread::sleep_for(std::min(limit_ / 2, Seconds(1)));
        for (const std::string& text : long_waits()) TORCH_WARN(text);
      }
    }).detach();
  }

  std::vector<std::string> long_waits() {
    std::vector<std::string> texts;
    const std::lock_guard lock(mutex_);
    for (Waiting* wait : waits_) {
      const Seconds length = std::chrono::steady_clock::now() - wait->begin_;
      if (wait->is_told_ || length < limit_) continue;
      wait->is_told_ = true;
      texts.push_back(
          fmt::format("[{}] rank {} has waited {:.1f} s for the others of the ranks {}{}. "
                      "Each of them must make the same call: one under `if rank == 0:` is never answered. "
                      "SHARDWISE_CHECK=1 names ranks that make different calls, "
                      "SHARDWISE_WAIT_WARNING=<seconds> says when to warn (0: never).",
                      wait->collective_, wait->rank_, length.count(), wait->ranks_,
                      *wait->op_ ? fmt::format(", which {} needs", wait->op_) : ""));
    }
    return texts;
  }

  Seconds limit_;
  std::mutex mutex_;
  std::unordered_set<Waiting*> waits_;
  bool is_started_ = false;
};

Waiting::Waiting(const std::vector<int64_t>& ranks, int64_t rank, const char* collective)
    : ranks_(ranks),
      rank_(rank),
      collective_(collective),
      op_(CommScope::current_op()),
      begin_(std::chrono::steady_clock::now()) {
  WaitWatch::instance().add(this);
}

Waiting::~Waiting() { WaitWatch::instance().remove(this); }

}  // namespace shardwise
