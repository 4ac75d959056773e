// tests/support/accelerator/machine.h: streams, events, and the rules that each launch is checked against.
#pragma once

#include "tests/support/accelerator/memory.h"

#include <condition_variable>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>

namespace shardwise::accelerator {

/// A point in a stream's work: what is over when the stream has come there.
struct Event {
  c10::DeviceIndex device = 0;
  Clock clock;
};

/// All devices. Thread-safe; one of them, never destroyed.
class Machine {
 public:
  static Machine& get();

  // The calling thread's.
  static c10::DeviceIndex current_device();
  static c10::DeviceIndex exchange_device(c10::DeviceIndex device);
  static c10::StreamId current_stream(c10::DeviceIndex device);
  static c10::StreamId exchange_stream(c10::Stream stream);

  c10::Stream new_stream(c10::DeviceIndex device);
  void* handle(c10::Stream stream);

  void launch(const std::string& name, c10::Stream stream, const std::vector<Access>& accesses,
              std::function<void()> task, bool reaches_peers);

  Event record(c10::Stream stream);
  void block(const Event& event, c10::Stream stream);
  /// The next three also tell the host that the work is over.
  bool query(const Event& event);
  bool query(c10::Stream stream);
  void synchronize(const Event& event);
  void synchronize(c10::Stream stream);
  void synchronize(c10::DeviceIndex device);
  /// Waits without the host having asked: nothing counts as over that did not before.
  void wait_unseen(c10::Stream stream);

  /// Runs `kernel` on this thread when all before it on the current stream is over; device memory is readable by its own addresses, and
  /// what `kernel` launches runs at once. Nothing is known of what it reads and writes.
  void run_on_host(const std::string& name, c10::Device device, const std::function<void()>& kernel);

  void* allocate(int64_t n_bytes);
  void free(void* address);
  void record_stream(const void* address, c10::Stream stream);
  void* host_address(const void* address) const { return memory_.host_address(address); }

  std::vector<std::string> take_faults();

 private:
  struct Task {
    std::function<void()> run;  // empty of a wait
    std::string name;
    Clock awaited;
  };
  struct Queue {
    Queue(c10::Stream of, int as_number) : stream(of), number(as_number) {}

    c10::Stream stream;
    int number;
    std::deque<Task> tasks;
    std::condition_variable has_tasks;
    uint64_t n_launched = 0, n_done = 0;
    Clock clock;  // of what is launched next
  };

  Queue& queue(c10::Stream stream);
  void work(Queue& queue);
  void check_place(const std::string& name, const Queue& queue, const Block* block, bool reaches_peers);
  void check_order(const std::string& name, Queue& queue, const Access& access, Block& block);
  bool is_over(const Clock& clock) const;
  void wait_for(std::unique_lock<std::mutex>& lock, const Clock& clock);
  void fault(std::string text);
  std::string words(int stream) const;

  std::mutex mutex_;
  std::condition_variable is_done_;  // a task of some stream
  std::deque<Queue> queues_;         // by number
  std::map<std::pair<c10::DeviceIndex, c10::StreamId>, int> numbers_;
  Memory memory_;
  int n_on_host_ = 0;  // calls of run_on_host
  Clock host_;         // what the host waited for
  std::vector<std::string> faults_;
  std::map<c10::DeviceIndex, std::string> failures_;  // a kernel threw, and nobody has waited since
};

}  // namespace shardwise::accelerator
