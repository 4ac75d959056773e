#include "runtime/comm/peer_memory.h"

#include "runtime/comm/agreement.h"
#include "runtime/comm/digest.h"
#include "runtime/comm/group_backend.h"
#include "runtime/comm/memory_view.h"
#include "runtime/comm/tagged_messages.h"
#include "text/check.h"

#include <ATen/ops/empty.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/InferenceMode.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#ifdef __linux__
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>
#endif

namespace shardwise {
namespace {

constexpr int64_t kUnit = 1 << 16;  // of blocks; a multiple of the size of a page

/// An open file without a name, or none.
struct File {
  int descriptor = -1;
  int64_t number = -1;  // among the files of its file system
  int64_t n_bytes = 0;

  File() = default;
  File(File&& from) noexcept { *this = std::move(from); }
  File& operator=(File&& from) noexcept {
    std::swap(descriptor, from.descriptor);
    std::swap(number, from.number);
    std::swap(n_bytes, from.n_bytes);
    return *this;
  }
  ~File();
};

#ifdef __linux__

File::~File() {
  if (descriptor >= 0) close(descriptor);
}

int64_t own_process() { return getpid(); }

/// A new file of `n_bytes` zeros, or of twice the machine's memory if that is less. It takes no memory until it is written to.
File new_file(int64_t n_bytes) {
  rlimit longest{};
  if (getrlimit(RLIMIT_FSIZE, &longest) != 0 || longest.rlim_cur != RLIM_INFINITY) return {};
  const int64_t n_physical = int64_t{sysconf(_SC_PHYS_PAGES)} * sysconf(_SC_PAGESIZE);
  File file;
  file.descriptor = memfd_create("shardwise", MFD_CLOEXEC);
  file.n_bytes = std::min(n_bytes, 2 * n_physical) / kUnit * kUnit;
  struct stat facts{};
  if (file.descriptor < 0 || file.n_bytes <= 0 || ftruncate(file.descriptor, file.n_bytes) != 0 ||
      fstat(file.descriptor, &facts) != 0)
    return {};
  file.number = static_cast<int64_t>(facts.st_ino);
  return file;
}

/// The file that another process made by new_file(), if the descriptor is still open there: the same number, file system and size as `own`.
File file_of_process(int64_t process, int64_t descriptor, int64_t number, const File& own) {
  const std::string path = fmt::format("/proc/{}/fd/{}", process, descriptor);
  struct stat expected{}, facts{};
  const auto is_it = [&] {
    return facts.st_dev == expected.st_dev && static_cast<int64_t>(facts.st_ino) == number &&
           facts.st_size == own.n_bytes;
  };
  File file;
  if (fstat(own.descriptor, &expected) != 0 || stat(path.c_str(), &facts) != 0 || !is_it()) return {};
  file.descriptor = open(path.c_str(), O_RDWR | O_CLOEXEC);  // NOLINT(cppcoreguidelines-pro-type-vararg)
  if (file.descriptor < 0 || fstat(file.descriptor, &facts) != 0 || !is_it()) return {};
  file.n_bytes = own.n_bytes;
  return file;
}

void* map_all(const File& file) {
  void* begin = mmap(nullptr, static_cast<size_t>(file.n_bytes), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE,
                     file.descriptor, 0);
  if (begin == MAP_FAILED) return nullptr;
  madvise(begin, static_cast<size_t>(file.n_bytes), MADV_HUGEPAGE);  // a hint, so failure is harmless
  return begin;
}

void unmap(void* begin, size_t n_bytes) { munmap(begin, n_bytes); }

/// Takes the memory away from a part of a file, for all processes. It reads as zeros then.
void free_memory(void* begin, size_t n_bytes) { madvise(begin, n_bytes, MADV_REMOVE); }

#else

File::~File() = default;
int64_t own_process() { return 0; }
File new_file(int64_t) { return {}; }
File file_of_process(int64_t, int64_t, int64_t, const File&) { return {}; }
void* map_all(const File&) { return nullptr; }
void unmap(void*, size_t) {}
void free_memory(void*, size_t) {}

#endif

/// [n_bytes] uint8 over memory that `context` keeps.
template <class Context>
at::Tensor tensor_over(void* begin, size_t n_bytes, std::unique_ptr<Context> context) {
  const c10::InferenceMode normal(false);  // training steps reuse the memory
  const auto drop = [](void* of) { delete static_cast<Context*>(of); };
  const c10::Storage storage(c10::Storage::use_byte_size_t(), n_bytes,
                             c10::DataPtr(begin, context.release(), drop, at::kCPU));
  return at::empty({0}, at::kByte).set_(storage, 0, {static_cast<int64_t>(n_bytes)});
}

/// All of a file: [bytes] uint8. Undefined if the system refuses.
at::Tensor mapped(const File& file) {
  struct Mapping {
    void* begin;
    size_t n_bytes;
    Mapping(void* at, size_t n) : begin(at), n_bytes(n) {}
    C10_DISABLE_COPY_AND_ASSIGN(Mapping);
    ~Mapping() { unmap(begin, n_bytes); }
  };
  void* const begin = file.descriptor < 0 ? nullptr : map_all(file);
  const auto n_bytes = static_cast<size_t>(file.n_bytes);
  return begin ? tensor_over(begin, n_bytes, std::make_unique<Mapping>(begin, n_bytes)) : at::Tensor();
}

/// The first word of a mapping recognises it.
int64_t& mark(const at::Tensor& memory) { return *static_cast<int64_t*>(memory.mutable_data_ptr()); }

/// A hash of the machine's current start.
int64_t machine() {
  Digest digest;
  std::string text;
  std::getline(std::ifstream("/proc/sys/kernel/random/boot_id"), text);
  digest.add(text);
  return digest.value();
}

/// A number that no other process has, to recognise its memory.
int64_t mark_of(const void* memory) {
  Digest digest;
  const auto now = std::chrono::steady_clock::now().time_since_epoch().count();
  for (const int64_t number : {own_process(), static_cast<int64_t>(now), reinterpret_cast<int64_t>(memory)})
    digest.add(number);
  return digest.value();
}

}  // namespace

/// Hands out blocks of a mapping, in units: the first range that is long enough. The first unit has the mark.
class PeerMemory::Arena : public std::enable_shared_from_this<Arena> {
 public:
  explicit Arena(at::Tensor memory) : memory_(std::move(memory)) { free_[1] = memory_.numel() / kUnit - 1; }

  /// The unit of an address, or -1.
  int64_t unit_of(const void* address) const {
    const auto byte = reinterpret_cast<uintptr_t>(address) - reinterpret_cast<uintptr_t>(at(0));
    return byte < memory_.nbytes() ? static_cast<int64_t>(byte) / kUnit : -1;
  }

  at::Tensor take(int64_t n_bytes) {
    const int64_t n = std::max<int64_t>((n_bytes + kUnit - 1) / kUnit, 1);
    int64_t first = 0;
    {
      const std::lock_guard lock(mutex_);
      const auto range = std::ranges::find_if(free_, [n](const auto& each) { return each.second >= n; });
      if (range == free_.end()) return {};
      first = range->first;
      const int64_t n_left = range->second - n;
      free_.erase(range);
      if (n_left > 0) free_[first + n] = n_left;
    }
    void* const begin = at(first);
    const auto size = static_cast<size_t>(n_bytes);
    c10::profiledCPUMemoryReporter().New(begin, size);  // so profiles count it
    return tensor_over(begin, size, std::make_unique<Block>(shared_from_this(), first, n));
  }

 private:
  struct Block {
    std::shared_ptr<Arena> arena;
    int64_t first, n;
    Block(std::shared_ptr<Arena> of, int64_t from, int64_t units) : arena(std::move(of)), first(from), n(units) {}
    C10_DISABLE_COPY_AND_ASSIGN(Block);
    ~Block() { arena->give_back(first, n); }
  };

  void* at(int64_t unit) const { return static_cast<char*>(memory_.mutable_data_ptr()) + unit * kUnit; }

  void give_back(int64_t first, int64_t n) {
    c10::profiledCPUMemoryReporter().Delete(at(first));
    if (own_process() == process_) free_memory(at(first), static_cast<size_t>(n * kUnit));  // not in a forked child
    const std::lock_guard lock(mutex_);
    auto range = free_.emplace(first, n).first;
    if (const auto after = std::next(range); after != free_.end() && after->first == first + n) {
      range->second += after->second;
      free_.erase(after);
    }
    if (range == free_.begin()) return;
    if (const auto before = std::prev(range); before->first + before->second == first) {
      before->second += range->second;
      free_.erase(range);
    }
  }

  at::Tensor memory_;
  int64_t process_ = own_process();
  std::mutex mutex_;
  std::map<int64_t, int64_t> free_;  // the length of each free range, by its first unit
};

PeerMemory::PeerMemory(const Group& group, c10::DeviceType device, int64_t n_bytes) {
  const auto n = static_cast<size_t>(group.size());
  others_.resize(n);
  if (n == 1 || !group.sends || device != at::kCPU || !goes_tagged(*backend_of(group, "share memory", device))) return;
  const File file = new_file(n_bytes);
  const at::Tensor memory = mapped(file);
  const int64_t own_mark = memory.defined() ? mark_of(memory.const_data_ptr()) : 0;
  if (memory.defined()) mark(memory) = own_mark;
  const auto all =
      gather_alike(group, "share memory",
                   {machine(), own_process(), memory.defined() ? file.descriptor : -1, file.number, own_mark});
  const auto own = static_cast<size_t>(group.index);
  std::vector<int64_t> reached((n + 63) / 64);  // a bit per member
  for (size_t i = 0; i < n; ++i) {
    if (i == own || !memory.defined() || all[i][0] != all[own][0] || all[i][2] < 0) continue;
    others_[i] = mapped(file_of_process(all[i][1], all[i][2], all[i][3], file));
    if (others_[i].defined() && mark(others_[i]) != all[i][4]) others_[i].reset();
    if (!others_[i].defined()) continue;
    reached[i / 64] |= int64_t{1} << (i % 64);
  }
  const auto reach = gather_alike(group, "share memory", reached);
  for (size_t i = 0; i < n; ++i)
    if ((reach[i][own / 64] >> (own % 64) & 1) == 0) others_[i].reset();
  if (shares_any()) own_ = std::make_shared<Arena>(memory);
}

bool PeerMemory::shares_any() const {
  return std::ranges::any_of(others_, [](const at::Tensor& each) { return each.defined(); });
}

at::Tensor PeerMemory::take(int64_t n_bytes) const { return own_ ? own_->take(n_bytes) : at::Tensor(); }

int64_t PeerMemory::name_of(const at::Tensor& tensor) const {
  return own_ ? own_->unit_of(tensor.storage().data()) : -1;
}

at::Tensor PeerMemory::place(int64_t index, int64_t name, int64_t begin, int64_t n_bytes) const {
  const at::Tensor& arena = others_[static_cast<size_t>(index)];
  const int64_t size = arena.numel();
  SW_CHECK(name > 0 && name < size / kUnit && begin >= 0 && n_bytes >= 0 && n_bytes <= size - name * kUnit &&
               begin <= size - name * kUnit - n_bytes,
           "[share memory] {} bytes from byte {} of block {} do not lie in the {} bytes that member {} shares. Run the "
           "same version of Shardwise on all ranks.",
           n_bytes, begin, name, size, index);
  return memory_view(arena, name * kUnit + begin, {n_bytes}, at::kByte);
}

}  // namespace shardwise
