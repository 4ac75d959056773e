// runtime/dispatch/view_begin.h: where views begin in the memory that the global tensor would have: what storage_offset() says.
#pragma once

#include "runtime/tensor/dtensor_impl.h"

namespace shardwise {

/// In bytes, for views of any dtype.
inline int64_t begin_of(const DTensorImpl& tensor) {
  return tensor.storage_offset() * static_cast<int64_t>(tensor.itemsize());
}

/// To be called with a new view of a tensor that begins at `begin_of_source`; it begins `offset` elements of the view behind it.
inline void begin_view(const at::Tensor& view, int64_t begin_of_source, int64_t offset = 0) {
  if (begin_of_source == 0 && offset == 0) return;
  auto* impl = view.unsafeGetTensorImpl();
  impl->set_storage_offset(begin_of_source / static_cast<int64_t>(impl->itemsize()) + offset);
}

}  // namespace shardwise
