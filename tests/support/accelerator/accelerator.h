// tests/support/accelerator/accelerator.h: a simulated accelerator for tests: devices over host memory, with CUDA's rules.
//
// torch knows it as the device type PrivateUse1. Work on a stream runs later, in order, on a thread of the stream; events order streams.
// The host cannot read device memory: its addresses are of pages without access, and the bytes lie elsewhere (host_address()).
//
// Every launch is checked, whatever the timing of the run was. A fault is one of:
//   - a launch on a device or stream that is not the current device's, or on memory of another device
//   - an access that no stream order, event or wait of the host orders after an earlier write (or, of a write, an earlier read)
//   - memory freed while another stream than its own may still use it, without record_stream
//   - a kernel that throws, as where an index is out of range
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Stream.h>

#include <functional>
#include <string>
#include <vector>

namespace shardwise::accelerator {

inline constexpr c10::DeviceType kType = c10::DeviceType::PrivateUse1;
inline constexpr int kDevices = 8;

/// Strided device memory that a kernel reads or writes. Sizes in elements, strides in bytes.
struct Access {
  const void* address = nullptr;
  std::vector<int64_t> sizes, strides;
  int64_t element_bytes = 1;
  bool is_write = false;
};
Access reads(const at::Tensor& tensor);
Access writes(const at::Tensor& tensor);
Access reads(const void* address, int64_t n_bytes);
Access writes(void* address, int64_t n_bytes);

/// Runs `task` later on `stream`, after what was launched there before; the counterpart of a CUDA kernel launch.
/// `reaches_peers`: memory of other devices may be accessed, as copies do.
void launch(const std::string& name, c10::Stream stream, const std::vector<Access>& accesses,
            std::function<void()> task, bool reaches_peers = false);

/// The stream whose native_handle() this is.
c10::Stream stream_of_handle(void* handle);

/// Where the bytes of device memory lie, for tasks. Null stays null.
void* host_address(const void* address);

/// The current stream of the tensor's device.
c10::Stream current_stream(c10::Device device);

/// As shardwise::HostKernels: `kernel`, which is the CPU's, on the memory of `device`.
void run_host_kernel(c10::Device device, const std::function<void()>& kernel);

/// What was wrong since the last call, in order.
std::vector<std::string> take_faults();
/// ... one a line.
std::string faults_in_lines();

/// Each fault of the tests' launches, as a failure of the test that is running. To be called when all ranks have returned.
void expect_no_faults();

}  // namespace shardwise::accelerator
