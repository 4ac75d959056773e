#include "runtime/comm/flight_watch.h"

#include "runtime/comm/flight_dump.h"
#include "runtime/comm/flight_recorder.h"

#include <c10/util/ApproximateClock.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <csignal>
#include <cstdlib>
#include <mutex>
#include <set>
#include <string>
#include <string_view>
#include <thread>

namespace shardwise {
namespace {

std::atomic<int> wake_end{-1};  // the write end of a pipe, for the signal handler

void wake(int /*signal*/) {
  const int saved = errno;
  const int end = wake_end.load(std::memory_order_relaxed);
  if (end >= 0) [[maybe_unused]]
    const auto written = ::write(end, "", 1);
  errno = saved;
}

bool is_signal_asked_for() {
  const char* const value = std::getenv("SHARDWISE_DUMP_SIGNAL");
  return value != nullptr && std::string_view(value) == "1";
}

/// Makes SIGUSR1 wake the watch, unless the program has a handler.
void listen_to_signal() {
  struct sigaction known{};
  if (::sigaction(SIGUSR1, nullptr, &known) != 0 || (known.sa_flags & SA_SIGINFO) != 0 || known.sa_handler != SIG_DFL)
    return;
  struct sigaction ours{};
  ours.sa_handler = &wake;
  ours.sa_flags = SA_RESTART;
  sigemptyset(&ours.sa_mask);
  ::sigaction(SIGUSR1, &ours, nullptr);
}

class FlightWatch {
 public:
  static FlightWatch& instance() {
    static auto* const watch = new FlightWatch;  // its thread may outlive main()
    return *watch;
  }

  void start() {
    const std::lock_guard lock(mutex_);
    if (is_started_) return;
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC | O_NONBLOCK) != 0) return;
    is_started_ = true;
    wake_end = ends[1];
    if (is_signal_asked_for()) listen_to_signal();
    static const int registered = ::pthread_atfork(nullptr, nullptr, &forget_in_child);
    static_cast<void>(registered);
    unix_clock();  // makes the first of two comparisons with the time of day
    std::thread([this, end = ends[0]] { watch(end); }).detach();
  }

 private:
  FlightWatch() {
    const char* const value = std::getenv("SHARDWISE_WAIT_WARNING");
    if (value == nullptr || *value == '\0') return;
    char* end = nullptr;
    const double seconds = std::strtod(value, &end);
    if (*end == '\0' && std::isfinite(seconds) && seconds >= 0)
      limit_ = seconds;
    else
      TORCH_WARN(
          fmt::format("[wait warning] SHARDWISE_WAIT_WARNING is \"{}\", which is not a number of seconds: warnings "
                      "come after {:.0f} s. Set it to a number of seconds, or to 0 for no warnings.",
                      value, limit_));
  }

  /// A forked process has no watch thread and shares the pipe, so SIGUSR1 gets its default action back.
  static void forget_in_child() {
    struct sigaction known{};
    if (::sigaction(SIGUSR1, nullptr, &known) == 0 && known.sa_handler == &wake) ::signal(SIGUSR1, SIG_DFL);
    wake_end = -1;
    instance().is_started_ = false;
  }

  void watch(int end) {
    sigset_t signals;  // signals are left to the program's own threads
    sigfillset(&signals);
    ::pthread_sigmask(SIG_BLOCK, &signals, nullptr);
    const int patience_ms = limit_ > 0 ? std::max(1, static_cast<int>(std::min(limit_ / 2, 1.0) * 1000)) : -1;
    for (;;) {
      pollfd event{end, POLLIN, 0};
      if (::poll(&event, 1, patience_ms) > 0) {
        char bytes[64];
        while (::read(end, bytes, sizeof bytes) > 0) {
        }
        dump_on_signal();
      }
      if (limit_ > 0) warn_of_long_waits();
    }
  }

  static void dump_on_signal() {
    try {
      const auto written = dump_flights(dump_folder(), "SIGUSR1");
      TORCH_WARN(written.empty() ? "[SIGUSR1] this process is no rank yet: there is nothing to write."
                                 : fmt::format("[SIGUSR1] wrote {}", fmt::join(written, ", ")));
    } catch (const std::exception& error) {
      TORCH_WARN(error.what());
    }
  }

  void warn_of_long_waits() {
    const uint64_t now = c10::getApproximateTime();
    std::set<std::pair<const FlightRecorder*, uint64_t>> still_waiting;
    std::vector<std::pair<const FlightRecorder*, FlightRecord>> news;
    std::function<int64_t(uint64_t)> to_ns;
    for (const FlightRecorder* recorder : FlightRecorder::all())
      for (const FlightRecord& record : recorder->waits()) {
        if (!to_ns) to_ns = unix_clock();
        if (static_cast<double>(to_ns(now) - to_ns(record.waits_since)) * 1e-9 < limit_) continue;
        still_waiting.emplace(recorder, record.number);
        if (!told_.contains({recorder, record.number})) news.emplace_back(recorder, record);
      }
    told_ = std::move(still_waiting);
    if (news.empty()) return;
    const auto written = dump_unasked("a wait takes long");
    for (const auto& [recorder, record] : news) warn(*recorder, record, to_ns, written);
  }

  static void warn(const FlightRecorder& recorder, const FlightRecord& record,
                   const std::function<int64_t(uint64_t)>& to_ns, const std::vector<std::string>& written) {
    const double waited = static_cast<double>(c10::getTimeSinceEpoch() - to_ns(record.waits_since)) * 1e-9;
    const std::string op = record.op.data();
    TORCH_WARN(fmt::format(
        "[{}] rank {} has waited {:.1f} s for the others of the ranks {}{}. "
        "Each of them must make the same call: one under `if rank == 0:` is never answered. {}"
        "SHARDWISE_CHECK=1 names ranks that make different calls, "
        "SHARDWISE_WAIT_WARNING=<seconds> says when to warn (0: never).",
        record.name, recorder.rank(), waited, record.group->ranks,
        op.empty() ? "" : fmt::format(", which {} needs", op),
        written.empty()
            ? ""
            : fmt::format("The rank's calls are in {}: `python -m shardwise hang` reads such files of all ranks, and "
                          "`kill -USR1` makes a rank that was started with SHARDWISE_DUMP_SIGNAL=1 write one. ",
                          fmt::join(written, ", "))));
  }

  double limit_ = 30;  // seconds
  std::mutex mutex_;
  bool is_started_ = false;
  std::set<std::pair<const FlightRecorder*, uint64_t>> told_;
};

}  // namespace

void start_flight_watch() { FlightWatch::instance().start(); }

void start_flight_watch_if_asked() {
  if (is_signal_asked_for()) start_flight_watch();
}

}  // namespace shardwise
