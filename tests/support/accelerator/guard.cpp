// tests/support/accelerator/guard.cpp: the accelerator as torch sees it: device guard, allocator, hooks.
#include "tests/support/accelerator/machine.h"

#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/Allocator.h>
#include <c10/core/DeviceType.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <cstring>

namespace shardwise::accelerator {
namespace {

Machine& machine() { return Machine::get(); }

c10::DeviceIndex index_of(c10::Device device) {
  return device.has_index() ? device.index() : Machine::current_device();
}

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return kType; }
  c10::Device exchangeDevice(c10::Device device) const override {
    return {kType, Machine::exchange_device(index_of(device))};
  }
  c10::Device getDevice() const override { return {kType, Machine::current_device()}; }
  void setDevice(c10::Device device) const override { Machine::exchange_device(index_of(device)); }
  void uncheckedSetDevice(c10::Device device) const noexcept override { Machine::exchange_device(index_of(device)); }
  c10::DeviceIndex deviceCount() const noexcept override { return kDevices; }

  c10::Stream getStream(c10::Device device) const override {
    const c10::DeviceIndex index = index_of(device);
    return accelerator::current_stream({kType, index});
  }
  c10::Stream getDefaultStream(c10::Device device) const override {
    return c10::Stream(c10::Stream::DEFAULT, {kType, index_of(device)});
  }
  c10::Stream getNewStream(c10::Device device, int) const override { return machine().new_stream(index_of(device)); }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool) const override {
    return machine().new_stream(index_of(device));
  }
  c10::Stream exchangeStream(c10::Stream stream) const override {
    return c10::Stream(c10::Stream::UNSAFE, stream.device(), Machine::exchange_stream(stream));
  }
  void* getStreamNativeHandle(const c10::Stream stream) const override { return machine().handle(stream); }
  bool queryStream(const c10::Stream& stream) const override { return machine().query(stream); }
  void synchronizeStream(const c10::Stream& stream) const override { machine().synchronize(stream); }
  void synchronizeDevice(const c10::DeviceIndex index) const override { machine().synchronize(index); }

  void record(void** event, const c10::Stream& stream, const c10::DeviceIndex index,
              const c10::EventFlag) const override {
    TORCH_CHECK(index == -1 || index == stream.device_index(), "Event device index ", static_cast<int>(index),
                " does not match recording stream's device index ", static_cast<int>(stream.device_index()), ".");
    if (*event == nullptr) *event = new Event;
    *static_cast<Event*>(*event) = machine().record(stream);
  }
  void block(void* event, const c10::Stream& stream) const override {
    if (event != nullptr) machine().block(*static_cast<Event*>(event), stream);
  }
  bool queryEvent(void* event) const override {
    return event == nullptr || machine().query(*static_cast<Event*>(event));
  }
  void synchronizeEvent(void* event) const override {
    if (event != nullptr) machine().synchronize(*static_cast<Event*>(event));
  }
  void destroyEvent(void* event, const c10::DeviceIndex) const noexcept override { delete static_cast<Event*>(event); }

  void recordDataPtrOnStream(const c10::DataPtr& data, const c10::Stream& stream) const override {
    machine().record_stream(data.get(), stream);
  }
};
C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard);

/// On the current device, for the current stream.
struct DeviceAllocator final : c10::Allocator {
  static void release(void* address) { machine().free(address); }

  c10::DataPtr allocate(size_t n) override {
    const c10::Device device(kType, Machine::current_device());
    if (n == 0) return {nullptr, device};
    void* const address = machine().allocate(static_cast<int64_t>(n));
    return {address, address, &release, device};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, size_t n) const override {
    const auto n_bytes = static_cast<int64_t>(n);
    launch("copy_data", current_stream({kType, Machine::current_device()}), {reads(from, n_bytes), writes(to, n_bytes)},
           [to = host_address(to), from = host_address(from), n] { std::memcpy(to, from, n); });
  }
};
DeviceAllocator device_allocator;
REGISTER_ALLOCATOR(kType, &device_allocator);

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::DeviceIndex deviceCount() const override { return kDevices; }
  c10::DeviceIndex getCurrentDevice() const override { return Machine::current_device(); }
  void setCurrentDevice(c10::DeviceIndex device) const override { Machine::exchange_device(device); }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex device) const override { return Machine::exchange_device(device); }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex device) const override {
    return Machine::exchange_device(device);
  }
};
Hooks hooks;

const bool is_registered = [] {
  c10::register_privateuse1_backend("simulated");
  at::RegisterPrivateUse1HooksInterface(&hooks);
  return true;
}();

}  // namespace
}  // namespace shardwise::accelerator
