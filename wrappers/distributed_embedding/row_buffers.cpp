#include "wrappers/distributed_embedding/row_buffers.h"

#include "runtime/comm/memory_view.h"

#include <ATen/ops/empty.h>
#include <c10/core/InferenceMode.h>

#ifdef __linux__
#include <sys/mman.h>
#endif

namespace shardwise {
namespace {

constexpr int64_t kMostIdle = 64;

bool is_free(const at::Tensor& buffer) { return buffer.use_count() == 1 && buffer.storage().use_count() == 1; }

}  // namespace

at::Tensor RowBuffers::take(int64_t n_rows, int64_t width, const at::TensorOptions& options) {
  const int64_t n = n_rows * width;
  const std::lock_guard lock(mutex_);
  size_t best = buffers_.size();
  for (size_t i = 0; i < buffers_.size(); ++i) {
    if (!is_free(buffers_[i])) continue;
    const bool fits = buffers_[i].dtype() == options.dtype() &&
                      buffers_[i].device().type() == options.device().type() && buffers_[i].numel() >= n;
    if (fits && (best == buffers_.size() || buffers_[i].numel() < buffers_[best].numel()))
      best = i;
    else
      ++idle_[i];
  }
  if (best == buffers_.size()) {
    const c10::InferenceMode normal(false);  // training steps reuse the buffer
    const int64_t n_with_room = n + n / 8;   // because steps differ a little
    const at::ScalarType dtype = c10::typeMetaToScalarType(options.dtype());
    const auto n_bytes = n_with_room * static_cast<int64_t>(options.dtype().itemsize());
    const at::Tensor block = shared_ ? shared_->take(n_bytes) : at::Tensor();
    buffers_.push_back(block.defined() ? memory_view(block, 0, {n_with_room}, dtype)
                                       : at::empty({n_with_room}, options));
    idle_.push_back(0);
    if (!block.defined()) prefer_large_pages(buffers_.back());
  }
  idle_[best] = 0;
  // A new tensor: the pool's own has a use count of 1 while the memory is free.
  const at::Tensor result = memory_view(buffers_[best], 0, {n_rows, width}, buffers_[best].scalar_type());
  for (size_t i = buffers_.size(); i-- > 0;)
    if (idle_[i] > kMostIdle) {
      buffers_.erase(buffers_.begin() + static_cast<int64_t>(i));
      idle_.erase(idle_.begin() + static_cast<int64_t>(i));
    }
  return result;
}

int64_t RowBuffers::n_bytes() const {
  const std::lock_guard lock(mutex_);
  int64_t bytes = 0;
  for (const at::Tensor& buffer : buffers_) bytes += static_cast<int64_t>(buffer.nbytes());
  return bytes;
}

void prefer_large_pages(const at::Tensor& tensor) {
#if defined(__linux__) && defined(MADV_HUGEPAGE)
  constexpr uintptr_t kPage = 4096;
  constexpr size_t kLarge = 2 << 20;
  if (!tensor.device().is_cpu() || tensor.nbytes() < kLarge) return;
  const auto begin = (reinterpret_cast<uintptr_t>(tensor.mutable_data_ptr()) + kPage - 1) / kPage * kPage;
  const auto end = (reinterpret_cast<uintptr_t>(tensor.mutable_data_ptr()) + tensor.nbytes()) / kPage * kPage;
  madvise(reinterpret_cast<void*>(begin), end - begin, MADV_HUGEPAGE);  // a hint, so failure is harmless
#else
  static_cast<void>(tensor);
#endif
}

}  // namespace shardwise
