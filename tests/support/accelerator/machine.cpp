#include "tests/support/accelerator/machine.h"

#include <c10/util/Exception.h>
#include <c10/util/ScopeExit.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <thread>

namespace shardwise::accelerator {
namespace {

constexpr int kPoison = 0xFF;  // NaN in every floating dtype, -1 in integers

thread_local c10::DeviceIndex thread_device = 0;
thread_local std::array<c10::StreamId, kDevices> thread_streams{};
thread_local bool runs_at_once = false;

std::string kind_of(const Access& access) { return access.is_write ? "writes" : "reads"; }

/// Two accesses that must be ordered.
bool conflict(const Access& a, const Access& b) { return (a.is_write || b.is_write) && overlap(a, b); }

}  // namespace

Machine& Machine::get() {
  static auto* const machine = new Machine;
  return *machine;
}

c10::DeviceIndex Machine::current_device() { return thread_device; }

c10::DeviceIndex Machine::exchange_device(c10::DeviceIndex device) {
  TORCH_CHECK(device >= 0 && device < kDevices, "[accelerator] there is no device ", static_cast<int>(device), ".");
  return std::exchange(thread_device, device);
}

c10::StreamId Machine::current_stream(c10::DeviceIndex device) { return thread_streams.at(device); }

c10::StreamId Machine::exchange_stream(c10::Stream stream) {
  return std::exchange(thread_streams.at(stream.device_index()), stream.id());
}

c10::Stream Machine::new_stream(c10::DeviceIndex device) {
  const std::lock_guard lock(mutex_);
  c10::StreamId id = 1;
  while (numbers_.contains({device, id})) ++id;
  return queue(c10::Stream(c10::Stream::UNSAFE, {kType, device}, id)).stream;
}

void* Machine::handle(c10::Stream stream) {
  const std::lock_guard lock(mutex_);
  return &queue(stream).stream;
}

Machine::Queue& Machine::queue(c10::Stream stream) {
  const std::pair key{stream.device_index(), stream.id()};
  if (const auto found = numbers_.find(key); found != numbers_.end()) return queues_[found->second];
  const int number = static_cast<int>(queues_.size());
  numbers_.emplace(key, number);
  Queue& queue = queues_.emplace_back(stream, number);
  std::thread([this, &queue] { work(queue); }).detach();
  return queue;
}

void Machine::work(Queue& queue) {
  std::unique_lock lock(mutex_);
  while (true) {
    queue.has_tasks.wait(lock, [&] { return !queue.tasks.empty(); });
    Task task = std::move(queue.tasks.front());
    queue.tasks.pop_front();
    if (!task.run) {
      wait_for(lock, task.awaited);
      continue;
    }
    lock.unlock();
    std::string failure;
    try {
      task.run();
    } catch (const c10::Error& error) {
      failure = error.what_without_backtrace();
    } catch (const std::exception& error) {
      failure = error.what();
    }
    task.run = nullptr;  // what it holds is dropped without the lock
    lock.lock();
    if (!failure.empty()) {
      fault(fmt::format("{} failed on {}: {}", task.name, words(queue.number), failure));
      failures_.emplace(queue.stream.device_index(), faults_.back());
    }
    ++queue.n_done;
    is_done_.notify_all();
  }
}

bool Machine::is_over(const Clock& clock) const {
  return std::ranges::all_of(clock, [&](const auto& entry) { return queues_[entry.first].n_done >= entry.second; });
}

void Machine::wait_for(std::unique_lock<std::mutex>& lock, const Clock& clock) {
  is_done_.wait(lock, [&] { return is_over(clock); });
}

std::string Machine::words(int stream) const {
  const c10::Stream& named = queues_[stream].stream;
  return fmt::format("stream {} of device {}", named.id(), static_cast<int>(named.device_index()));
}

void Machine::fault(std::string text) { faults_.push_back(std::move(text)); }

void Machine::check_place(const std::string& name, const Queue& queue, const Block* block, bool reaches_peers) {
  if (!block) {
    fault(fmt::format("{} on {} touches memory that was freed or is none of a device", name, words(queue.number)));
  } else if (block->device != queue.stream.device_index() && !reaches_peers) {
    fault(fmt::format("{} was launched on {}, but its memory is of device {}", name, words(queue.number),
                      static_cast<int>(block->device)));
  }
}

void Machine::check_order(const std::string& name, Queue& queue, const Access& access, Block& block) {
  PastAccess now{access, name, queue.number, queue.n_launched + 1};
  std::erase_if(block.past, [&](const PastAccess& past) {
    if (past.is_over(host_)) return true;
    const bool is_this = past.stream == now.stream && past.launch == now.launch;
    const bool is_ordered = is_this || past.is_over(queue.clock);
    if (!is_ordered && conflict(access, past.access))
      fault(fmt::format("{} on {} {} memory that {} on {} {}: nothing orders the two. Wait for an event of the stream.",
                        name, words(queue.number), kind_of(access), past.name, words(past.stream),
                        kind_of(past.access)));
    const bool is_replaced = access.is_write || (!past.access.is_write && past.stream == queue.number);
    return is_ordered && !is_this && is_replaced && covers(access, past.access);
  });
  block.past.push_back(std::move(now));
}

void Machine::launch(const std::string& name, c10::Stream stream, const std::vector<Access>& accesses,
                     std::function<void()> task, bool reaches_peers) {
  std::unique_lock lock(mutex_);
  Queue& on = queue(stream);
  if (current_device() != stream.device_index())
    fault(fmt::format("{} was launched on {} while device {} was current. Set a device guard.", name, words(on.number),
                      static_cast<int>(current_device())));
  merge(on.clock, host_);
  for (const Access& access : accesses) {
    if (std::ranges::count(access.sizes, 0) > 0) continue;
    Block* const block = memory_.find(access.address);
    check_place(name, on, block, reaches_peers);
    if (block) check_order(name, on, access, *block);
  }
  on.clock[on.number] = ++on.n_launched;
  on.tasks.push_back({std::move(task), name, {}});
  on.has_tasks.notify_one();
  if (runs_at_once) wait_for(lock, on.clock);
}

Event Machine::record(c10::Stream stream) {
  const std::lock_guard lock(mutex_);
  Queue& of = queue(stream);
  merge(of.clock, host_);
  return {stream.device_index(), of.clock};
}

void Machine::block(const Event& event, c10::Stream stream) {
  const std::lock_guard lock(mutex_);
  Queue& waiting = queue(stream);
  Clock awaited = event.clock;
  awaited.erase(waiting.number);
  merge(waiting.clock, awaited);
  if (is_over(awaited)) return;
  waiting.tasks.push_back({nullptr, "", std::move(awaited)});
  waiting.has_tasks.notify_one();
}

bool Machine::query(const Event& event) {
  const std::lock_guard lock(mutex_);
  if (!is_over(event.clock)) return false;
  merge(host_, event.clock);
  return true;
}

bool Machine::query(c10::Stream stream) { return query(record(stream)); }

void Machine::synchronize(const Event& event) {
  std::unique_lock lock(mutex_);
  wait_for(lock, event.clock);
  merge(host_, event.clock);
  const auto failed = failures_.extract(event.device);
  TORCH_CHECK(failed.empty(), "[accelerator] ", failed.mapped());
}

void Machine::synchronize(c10::Stream stream) { synchronize(record(stream)); }

void Machine::synchronize(c10::DeviceIndex device) {
  Event all{device, {}};
  {
    const std::lock_guard lock(mutex_);
    for (const Queue& of : queues_)
      if (of.stream.device_index() == device) merge(all.clock, of.clock);
  }
  synchronize(all);
}

void Machine::wait_unseen(c10::Stream stream) {
  std::unique_lock lock(mutex_);
  wait_for(lock, queue(stream).clock);
}

void Machine::run_on_host(const std::string& name, c10::Device device, const std::function<void()>& kernel) {
  const c10::Stream stream(c10::Stream::UNSAFE, device, current_stream(device.index()));
  launch(name, stream, {}, [] {}, false);
  const auto set_accessible = [&](int change) {
    const std::lock_guard lock(mutex_);
    n_on_host_ += change;
    memory_.set_accessible(n_on_host_ > 0);
  };
  wait_unseen(stream);
  set_accessible(1);
  const auto outer = std::exchange(runs_at_once, true);
  const auto restore = c10::make_scope_exit([&] {
    runs_at_once = outer;
    set_accessible(-1);
  });
  kernel();
}

void* Machine::allocate(int64_t n_bytes) {
  const c10::DeviceIndex device = current_device();
  const c10::Stream stream(c10::Stream::UNSAFE, {kType, device}, current_stream(device));
  void* address;
  {
    const std::lock_guard lock(mutex_);
    address = const_cast<char*>(memory_.allocate(n_bytes, device, queue(stream).number).begin);
    if (n_on_host_ > 0) memory_.set_accessible(true);
  }
  launch(
      "the allocator", stream, {writes(address, n_bytes)},
      [bytes = host_address(address), n_bytes] { std::memset(bytes, kPoison, n_bytes); }, false);
  return address;
}

void Machine::free(void* address) {
  const std::lock_guard lock(mutex_);
  const Block& block = *memory_.find(address);
  Queue& own = queues_[block.stream];
  merge(own.clock, host_);
  for (const PastAccess& past : block.past)
    if (!block.recorded.contains(past.stream) && !past.is_over(own.clock))
      fault(
          fmt::format("memory of {} was freed while {} on {} may still use it. Wait for the stream, or call "
                      "record_stream.",
                      words(own.number), past.name, words(past.stream)));
  memory_.free(block);
}

void Machine::record_stream(const void* address, c10::Stream stream) {
  const std::lock_guard lock(mutex_);
  if (Block* const block = memory_.find(address)) block->recorded.insert(queue(stream).number);
}

std::vector<std::string> Machine::take_faults() {
  const std::lock_guard lock(mutex_);
  failures_.clear();
  return std::exchange(faults_, {});
}

Access reads(const at::Tensor& tensor) {
  std::vector<int64_t> strides = tensor.strides().vec();
  for (int64_t& stride : strides) stride *= tensor.element_size();
  return {tensor.const_data_ptr(), tensor.sizes().vec(), std::move(strides), tensor.element_size(), false};
}

Access writes(const at::Tensor& tensor) {
  Access access = reads(tensor);
  access.is_write = true;
  return access;
}

Access reads(const void* address, int64_t n_bytes) { return {address, {n_bytes}, {1}, 1, false}; }
Access writes(void* address, int64_t n_bytes) { return {address, {n_bytes}, {1}, 1, true}; }

void launch(const std::string& name, c10::Stream stream, const std::vector<Access>& accesses,
            std::function<void()> task, bool reaches_peers) {
  Machine::get().launch(name, stream, accesses, std::move(task), reaches_peers);
}

c10::Stream stream_of_handle(void* handle) { return *static_cast<c10::Stream*>(handle); }

void* host_address(const void* address) { return Machine::get().host_address(address); }

c10::Stream current_stream(c10::Device device) {
  return c10::Stream(c10::Stream::UNSAFE, device, Machine::current_stream(device.index()));
}

std::vector<std::string> take_faults() { return Machine::get().take_faults(); }

void run_host_kernel(c10::Device device, const std::function<void()>& kernel) {
  Machine::get().run_on_host("a kernel of the host", device, kernel);
}

std::string faults_in_lines() {
  std::string text;
  for (const std::string& fault : take_faults()) text += fault + "\n";
  return text;
}

void expect_no_faults() {
  for (c10::DeviceIndex device = 0; device < kDevices; ++device) {
    try {
      Machine::get().synchronize(device);
    } catch (const c10::Error&) {  // a failed kernel is among the faults
    }
  }
  for (const std::string& fault : take_faults()) ADD_FAILURE() << fault;
}

}  // namespace shardwise::accelerator
