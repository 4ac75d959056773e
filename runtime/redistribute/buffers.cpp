#include "runtime/redistribute/buffers.h"

#include "runtime/tensor/meta_memory.h"

#include <ATen/ops/empty.h>

#include <algorithm>

namespace shardwise {
namespace {

int64_t size_of(const at::Tensor& buffer) { return static_cast<int64_t>(buffer.storage().nbytes()); }

}  // namespace

BufferPool& BufferPool::of_thread() {
  thread_local BufferPool pool;
  return pool;
}

at::Tensor BufferPool::take(int64_t n_bytes, c10::Device device) {
  const auto options = at::TensorOptions(at::kByte).device(device);
  const LabelledMemory label(kMessageBuffers);
  if (!keeps(device)) return at::empty({n_bytes}, options);
  const auto fits = [&](const at::Tensor& buffer) { return buffer.device() == device && size_of(buffer) >= n_bytes; };
  const auto found = std::ranges::find_if(kept_, fits);
  if (found == kept_.end()) {
    ++counters_.misses;
    return at::empty({n_bytes}, options);
  }
  ++counters_.hits;
  const at::Tensor whole = *found;
  kept_.erase(found);
  counters_.kept_bytes -= size_of(whole);
  return whole.narrow(0, 0, n_bytes);
}

void BufferPool::give_back(const at::Tensor& buffer) {
  const int64_t n_bytes = size_of(buffer);
  if (!keeps(buffer.device()) || n_bytes == 0 || counters_.kept_bytes + n_bytes > kMaxKeptBytes) return;
  const at::Tensor whole = buffer.as_strided({n_bytes}, {1}, 0);
  const auto place = std::ranges::find_if(kept_, [&](const at::Tensor& other) { return size_of(other) >= n_bytes; });
  kept_.insert(place, whole);
  counters_.kept_bytes += n_bytes;
}

void BufferPool::keep_on_meta(bool are_kept) {
  keeps_on_meta_ = are_kept;
  std::erase_if(kept_, [&](const at::Tensor& buffer) {
    if (buffer.is_meta()) counters_.kept_bytes -= size_of(buffer);
    return buffer.is_meta();
  });
}

}  // namespace shardwise
