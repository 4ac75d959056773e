#include "runtime/comm/message_thread.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/util/ParallelGuard.h>
#include <c10/util/thread_name.h>
#include <unistd.h>

#include <condition_variable>
#include <exception>
#include <filesystem>
#include <fstream>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>

#ifdef __linux__
#include <sched.h>
#endif

namespace shardwise {
namespace {

thread_local bool writes_messages = false;

/// Makes a thread a batch job. `thread`: its number; 0 for this thread.
void make_batch_job(int thread) {
#ifdef __linux__
  const sched_param none{};
  if (sched_getscheduler(thread) == SCHED_OTHER) sched_setscheduler(thread, SCHED_BATCH, &none);  // failure is harmless
#else
  static_cast<void>(thread);
#endif
}

/// The state of a thread that only writes messages.
struct MessageWriter {
  MessageWriter() {
    c10::setThreadName("shardwise_comm");
    make_batch_job(0);
    writes_messages = true;
  }
  at::AutoDispatchBelowADInplaceOrView below_autograd;
  c10::ParallelGuard alone{true};
};

/// Shared by the thread that has jobs and the thread that runs them, whichever ends last.
class Jobs {
 public:
  void run(const std::function<void()>& job) {
    std::unique_lock lock(mutex_);
    job_ = &job;
    changed_.notify_all();
    changed_.wait(lock, [&] { return job_ == nullptr; });
    if (const auto error = std::exchange(error_, nullptr)) std::rethrow_exception(error);
  }

  void serve() {
    const MessageWriter writer;
    for (std::unique_lock lock(mutex_);;) {
      changed_.wait(lock, [&] { return job_ != nullptr || is_closed_; });
      if (is_closed_) return;
      lock.unlock();
      std::exception_ptr error;
      try {
        (*job_)();
      } catch (...) {
        error = std::current_exception();
      }
      lock.lock();
      error_ = std::move(error);
      job_ = nullptr;
      changed_.notify_all();
    }
  }

  void close() {
    const std::lock_guard lock(mutex_);
    is_closed_ = true;
    changed_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  const std::function<void()>* job_ = nullptr;
  std::exception_ptr error_;
  bool is_closed_ = false;
};

/// Detached, not joined. A forked process has this object without its thread, and starts another one.
class MessageThread {
 public:
  MessageThread() = default;
  ~MessageThread() {
    if (jobs_ && process_ == getpid()) jobs_->close();
  }
  C10_DISABLE_COPY_AND_ASSIGN(MessageThread);

  Jobs& jobs() {
    if (!jobs_ || process_ != getpid()) start();
    return *jobs_;
  }

 private:
  void start() {
    // The parent's jobs are never freed: the fork may have left their mutex locked.
    if (jobs_) new std::shared_ptr<Jobs>(std::move(jobs_));
    process_ = getpid();
    jobs_ = std::make_shared<Jobs>();
    std::thread([jobs = jobs_] { jobs->serve(); }).detach();
  }

  pid_t process_ = 0;
  std::shared_ptr<Jobs> jobs_;
};

}  // namespace

void run_on_message_thread(c10::Device device, const std::function<void()>& job) {
  if (!device.is_cpu() || writes_messages) return job();
  thread_local MessageThread thread;
  thread.jobs().run(job);
}

void calm_gloo_threads() {
  std::error_code none;  // without /proc there is nothing to do
  for (const auto& thread : std::filesystem::directory_iterator("/proc/self/task", none)) {
    std::string name;
    std::getline(std::ifstream(thread.path() / "comm"), name);
    if (name == "gloo_tcp_loop") make_batch_job(std::stoi(thread.path().filename()));
  }
}

std::future<void> run_in_background(std::function<void()> job) {
  std::packaged_task<void()> task([job = std::move(job)] {
    const MessageWriter writer;
    job();
  });
  std::future<void> end = task.get_future();
  std::thread(std::move(task)).detach();
  return end;
}

}  // namespace shardwise
