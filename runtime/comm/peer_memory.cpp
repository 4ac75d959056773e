#include "runtime/comm/peer_memory.h"

#include "runtime/comm/agreement.h"
#include "runtime/comm/digest.h"
#include "runtime/comm/group_backend.h"
#include "runtime/comm/tagged_messages.h"
#include "text/check.h"

#include <ATen/ops/empty.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/InferenceMode.h>
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <fstream>
#include <memory>
#include <string>

#ifdef __linux__
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#endif

namespace shardwise {
namespace {

constexpr int64_t kMostIdle = 256;  // calls

/// The memory behind a storage.
struct Mapped {
  void* begin = nullptr;
  size_t n_bytes = 0;
  int descriptor = -1;  // of this process's own memory
  int64_t number = -1;
};

#ifdef __linux__

void unmap(void* context) {
  const std::unique_ptr<Mapped> mapped(static_cast<Mapped*>(context));
  if (mapped->descriptor >= 0) c10::profiledCPUMemoryReporter().Delete(mapped->begin);
  munmap(mapped->begin, mapped->n_bytes);
  if (mapped->descriptor >= 0) close(mapped->descriptor);
}

int64_t own_process() { return getpid(); }

/// Maps all of the file. Undefined if the system refuses.
at::Tensor mapped(int descriptor, size_t n_bytes, int owned, int64_t number) {
  void* begin = mmap(nullptr, n_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
  if (begin == MAP_FAILED) return {};
  madvise(begin, n_bytes, MADV_HUGEPAGE);  // a hint, so failure is harmless
  const c10::InferenceMode normal(false);  // training steps reuse the memory
  c10::DataPtr memory(begin, new Mapped{begin, n_bytes, owned, number}, &unmap, at::kCPU);
  const c10::Storage storage(c10::Storage::use_byte_size_t(), n_bytes, std::move(memory));
  return at::empty({0}, at::kByte).set_(storage, 0, {static_cast<int64_t>(n_bytes)});
}

at::Tensor new_memory(size_t n_bytes) {
  static std::atomic<int32_t> n_made = 0;
  const int descriptor = memfd_create("shardwise", MFD_CLOEXEC);
  if (descriptor < 0) return {};
  at::Tensor result;
  if (ftruncate(descriptor, static_cast<off_t>(n_bytes)) == 0)
    result = mapped(descriptor, n_bytes, descriptor, n_made.fetch_add(1) & 0x7fffffff);
  if (result.defined())
    c10::profiledCPUMemoryReporter().New(result.mutable_data_ptr(), n_bytes);  // so profiles count it
  else
    close(descriptor);
  return result;
}

at::Tensor memory_of_process(int64_t process, int64_t descriptor) {
  const int file = open(fmt::format("/proc/{}/fd/{}", process, descriptor).c_str(), O_RDWR | O_CLOEXEC);
  if (file < 0) return {};
  struct stat facts{};
  at::Tensor result;
  if (fstat(file, &facts) == 0 && facts.st_size > 0) result = mapped(file, static_cast<size_t>(facts.st_size), -1, -1);
  close(file);
  return result;
}

#else

void unmap(void*) {}
int64_t own_process() { return 0; }
at::Tensor new_memory(size_t) { return {}; }
at::Tensor memory_of_process(int64_t, int64_t) { return {}; }

#endif

/// A hash of the machine's current start.
int64_t machine() {
  Digest digest;
  std::string text;
  std::getline(std::ifstream("/proc/sys/kernel/random/boot_id"), text);
  digest.add(text);
  return digest.value();
}

/// A number that no other process has, to recognise its memory.
int64_t mark_of(const at::Tensor& memory) {
  Digest digest;
  const auto now = std::chrono::steady_clock::now().time_since_epoch().count();
  for (const int64_t number : {own_process(), static_cast<int64_t>(now), reinterpret_cast<int64_t>(memory.data_ptr())})
    digest.add(number);
  return digest.value();
}

}  // namespace

PeerMemory::PeerMemory(const Group& group, c10::DeviceType device) {
  const auto n = static_cast<size_t>(group.size());
  shares_.resize(n);
  processes_.resize(n);
  if (n == 1 || !group.sends || device != at::kCPU || !goes_tagged(*backend_of(group, "share memory", device))) return;
  const at::Tensor probe = new_memory(sizeof(int64_t));
  const int64_t mark = probe.defined() ? mark_of(probe) : 0;
  if (probe.defined()) *static_cast<int64_t*>(probe.mutable_data_ptr()) = mark;
  const int64_t descriptor = probe.defined() ? name_of(probe).descriptor : -1;
  const auto all = gather_alike(group, "share memory", {machine(), own_process(), descriptor, mark});
  const auto own = static_cast<size_t>(group.index);
  std::vector<int64_t> reached((n + 63) / 64);  // a bit per member
  for (size_t i = 0; i < n; ++i) {
    processes_[i] = all[i][1];
    if (i == own || !probe.defined() || all[i][0] != all[own][0] || all[i][2] < 0) continue;
    const at::Tensor other = memory_of_process(all[i][1], all[i][2]);
    if (other.defined() && *static_cast<const int64_t*>(other.const_data_ptr()) == all[i][3])
      reached[i / 64] |= int64_t{1} << (i % 64);
  }
  const auto reach = gather_alike(group, "share memory", reached);
  const auto reaches = [&](size_t from, size_t to) { return (reach[from][to / 64] >> (to % 64) & 1) != 0; };
  for (size_t i = 0; i < n; ++i) shares_[i] = reaches(own, i) && reaches(i, own);
}

bool PeerMemory::shares_any() const { return std::ranges::count(shares_, true) > 0; }

at::Tensor PeerMemory::shared(int64_t n_bytes) {
  at::Tensor memory = new_memory(static_cast<size_t>(std::max<int64_t>(n_bytes, 1)));
  SW_CHECK(memory.defined(),
           "[share memory] cannot make memory of {} bytes: {}. Let the process have more memory or more open files.",
           n_bytes, std::strerror(errno));
  return memory;
}

PeerName PeerMemory::name_of(const at::Tensor& tensor) {
  const auto* memory = tensor.storage().data_ptr().cast_context<Mapped>(&unmap);
  if (memory == nullptr) return {};
  return {memory->descriptor, memory->number};
}

at::Tensor PeerMemory::memory(int64_t index, const PeerName& name) {
  const std::lock_guard lock(mutex_);
  at::Tensor result;
  for (Mapping& each : mappings_) {
    ++each.idle;
    if (each.index != index || each.number != name.number) continue;
    each.idle = 0;
    result = each.bytes;
  }
  std::erase_if(mappings_, [](const Mapping& each) { return each.idle > kMostIdle; });
  if (result.defined()) return result;
  result = memory_of_process(processes_[static_cast<size_t>(index)], name.descriptor);
  SW_CHECK(result.defined(),
           "[share memory] cannot map memory of process {}: {}. Let this process have more memory or more open files.",
           processes_[static_cast<size_t>(index)], std::strerror(errno));
  mappings_.push_back({index, name.number, result, 0});
  return result;
}

}  // namespace shardwise
