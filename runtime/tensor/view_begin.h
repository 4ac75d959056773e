// runtime/tensor/view_begin.h: the state that a view takes over from the tensor that it views: the memory, and its offset in the memory
// that the global tensor would have, which storage_offset() returns.
#pragma once

#include "runtime/tensor/dtensor_impl.h"

#include <memory>
#include <utility>

namespace shardwise {

struct ViewOrigin {
  int64_t begin = 0;  // in bytes, because a view may have another dtype
  TensorMemoryPtr memory;
  std::shared_ptr<OwnedRows> owned_rows = {};
};

inline ViewOrigin origin_of(const DTensorImpl& viewed) {
  return {viewed.storage_offset() * static_cast<int64_t>(viewed.itemsize()), viewed.memory(), viewed.owned_rows()};
}

/// Call this for a new view of a tensor with this origin. The view begins `offset` elements (of its dtype) after the tensor does.
inline void begin_view(const at::Tensor& view, ViewOrigin origin, int64_t offset = 0) {
  auto* impl = maybe_dtensor(view);
  impl->set_memory(std::move(origin.memory));
  if (origin.owned_rows) impl->set_owned_rows(std::move(origin.owned_rows));
  if (origin.begin == 0 && offset == 0) return;
  impl->set_storage_offset(origin.begin / static_cast<int64_t>(impl->itemsize()) + offset);
}

}  // namespace shardwise
