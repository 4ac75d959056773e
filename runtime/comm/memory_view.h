// runtime/comm/memory_view.h: tensors over a part of another tensor's memory, made without the dispatcher.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/TensorImpl.h>

namespace shardwise {

/// A contiguous tensor over the memory of `tensor` from its byte `offset` on. For autograd it is no view. Messages of many parts make
/// thousands of them, where each operator of torch costs about a microsecond.
/// Pre: `tensor` is plain and dense; the offset is a multiple of the size of the dtype, from the begin of the storage on.
inline at::Tensor memory_view(const at::Tensor& tensor, int64_t offset, c10::IntArrayRef sizes, at::ScalarType dtype) {
  auto view = at::detail::make_tensor<c10::TensorImpl>(c10::TensorImpl::VIEW, c10::Storage(tensor.storage()),
                                                       tensor.key_set(), c10::scalarTypeToTypeMeta(dtype));
  const int64_t begin = tensor.storage_offset() * static_cast<int64_t>(tensor.itemsize()) + offset;
  view.unsafeGetTensorImpl()->set_storage_offset(begin / static_cast<int64_t>(c10::elementSize(dtype)));
  view.unsafeGetTensorImpl()->set_sizes_contiguous(sizes);
  return view;
}

/// tensor.narrow(dim, begin, n), likewise.
inline at::Tensor narrowed(const at::Tensor& tensor, int64_t dim, int64_t begin, int64_t n) {
  auto part = at::detail::make_tensor<c10::TensorImpl>(c10::TensorImpl::VIEW, c10::Storage(tensor.storage()),
                                                       tensor.key_set(), tensor.dtype());
  c10::SmallVector<int64_t, 5> sizes(tensor.sizes());
  sizes[static_cast<size_t>(dim)] = n;
  part.unsafeGetTensorImpl()->set_storage_offset(tensor.storage_offset() + begin * tensor.stride(dim));
  part.unsafeGetTensorImpl()->set_sizes_and_strides(sizes, tensor.strides());
  return part;
}

}  // namespace shardwise
