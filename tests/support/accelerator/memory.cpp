#include "tests/support/accelerator/memory.h"

#include <c10/util/Exception.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>

namespace shardwise::accelerator {
namespace {

constexpr int64_t kArenaBytes = int64_t{64} << 30;  // of addresses; pages come with their first use
constexpr int64_t kAlignment = 64;

int make_file() {
  const int file = memfd_create("accelerator", 0);
  TORCH_CHECK(file >= 0 && ftruncate(file, kArenaBytes) == 0, "[accelerator] no memory for the devices.");
  return file;
}

char* map(int file, int protection) {
  void* const pages = mmap(nullptr, kArenaBytes, protection, MAP_SHARED | MAP_NORESERVE, file, /*offset=*/0);
  TORCH_CHECK(pages != MAP_FAILED, "[accelerator] no address space for device memory.");
  return static_cast<char*>(pages);
}

int64_t numel(const Access& access) {
  int64_t result = 1;
  for (const int64_t size : access.sizes) result *= size;
  return result;
}

/// From the first byte to behind the last.
std::pair<const char*, const char*> extent(const Access& access) {
  const char* begin = static_cast<const char*>(access.address);
  const char* end = begin + access.element_bytes;
  for (size_t i = 0; i < access.sizes.size(); ++i)
    (access.strides[i] < 0 ? begin : end) += (access.sizes[i] - 1) * access.strides[i];
  return {begin, end};
}

bool has_gaps(const Access& access) {
  const auto [begin, end] = extent(access);
  return end - begin > numel(access) * access.element_bytes;
}

/// Calls `visit` with each element's address.
template <class Visit>
void each_element(const Access& access, const char* at, size_t dim, const Visit& visit) {
  if (dim == access.sizes.size()) return visit(at);
  for (int64_t i = 0; i < access.sizes[dim]; ++i) each_element(access, at + i * access.strides[dim], dim + 1, visit);
}

}  // namespace

void merge(Clock& clock, const Clock& other) {
  for (const auto& [stream, launch] : other) clock[stream] = std::max(clock[stream], launch);
}

bool PastAccess::is_over(const Clock& clock) const {
  const auto found = clock.find(stream);
  return found != clock.end() && found->second >= launch;
}

bool overlap(const Access& a, const Access& b) {
  if (numel(a) == 0 || numel(b) == 0) return false;
  const auto [a_begin, a_end] = extent(a);
  const auto [b_begin, b_end] = extent(b);
  if (a_end <= b_begin || b_end <= a_begin) return false;
  if (!has_gaps(a) && !has_gaps(b)) return true;
  std::vector<bool> touched(a_end - a_begin);
  each_element(a, static_cast<const char*>(a.address), 0, [&, begin = a_begin](const char* at) {
    std::fill_n(touched.begin() + (at - begin), a.element_bytes, true);
  });
  bool result = false;
  each_element(b, static_cast<const char*>(b.address), 0, [&, begin = a_begin, end = a_end](const char* at) {
    for (const char* byte = std::max(at, begin); byte < std::min(at + b.element_bytes, end); ++byte)
      result |= touched[byte - begin];
  });
  return result;
}

bool covers(const Access& outer, const Access& inner) {
  if (numel(outer) == 0 || numel(inner) == 0 || has_gaps(outer)) return false;
  const auto [outer_begin, outer_end] = extent(outer);
  const auto [inner_begin, inner_end] = extent(inner);
  return outer_begin <= inner_begin && inner_end <= outer_end;
}

Memory::Memory()
    : file_(make_file()), device_pages_(map(file_, PROT_NONE)), host_pages_(map(file_, PROT_READ | PROT_WRITE)) {}

void Memory::set_accessible(bool is_accessible) {
  constexpr int64_t kPage = 4096;
  mprotect(device_pages_, (used_ + kPage - 1) / kPage * kPage, is_accessible ? PROT_READ | PROT_WRITE : PROT_NONE);
}

Block& Memory::allocate(int64_t n_bytes, c10::DeviceIndex device, int stream) {
  const char* const begin = device_pages_ + used_;
  used_ += (n_bytes + kAlignment - 1) / kAlignment * kAlignment;
  TORCH_CHECK(used_ <= kArenaBytes, "[accelerator] device memory is used up.");
  return blocks_.emplace(begin, Block{begin, n_bytes, device, stream, {}, {}}).first->second;
}

void Memory::free(const Block& block) { blocks_.erase(block.begin); }

Block* Memory::find(const void* address) {
  auto next = blocks_.upper_bound(static_cast<const char*>(address));
  if (next == blocks_.begin()) return nullptr;
  Block& block = std::prev(next)->second;
  return static_cast<const char*>(address) < block.begin + block.n_bytes ? &block : nullptr;
}

void* Memory::host_address(const void* address) const {
  return address == nullptr ? nullptr : host_pages_ + (static_cast<const char*>(address) - device_pages_);
}

}  // namespace shardwise::accelerator
