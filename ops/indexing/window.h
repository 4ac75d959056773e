// ops/indexing/window.h: indexing within this rank's window of a tensor; plain tensors, no messages.
//
// A window has indices [first, first + n) of a dim of `size` elements, where n is the local shard's extent. A lookup
// outside the window gives 0, a write outside it is dropped: the sum over all ranks' windows is the dense result.
#pragma once

#include <ATen/core/Tensor.h>

#include <string_view>

namespace shardwise {

/// The dims of self[..., index, ...]: the dims of self that are not indexed, in order, and the index tensors' broadcast dims. The latter stand at the
/// first indexed dim if the indexed dims are adjacent, else before all others.
///
/// Self of 4 dims, dims 1 and 2 indexed by [5, 6]: {0, -1, -1, 3}, batch at 1. Dims 0 and 2: {-1, -1, 1, 3}, batch at
/// 0.
struct ResultDims {
  ResultDims(int64_t n_dims, c10::IntArrayRef indexed, int64_t n_batch);

  c10::SmallVector<int64_t, 5> of_self;  // per dim of the result: the dim of self, or -1
  int64_t batch_begin = 0;
};

/// self[..., indices[i] at dims[i], ...]. Pre: `dims` ascend; indices are in range of `sizes`. `firsts`, `sizes`: one per indexed dim. `from_end`:
/// indices may be negative, and then count from the end.
at::Tensor index_window(const at::Tensor& self, at::TensorList indices, c10::IntArrayRef dims, c10::IntArrayRef firsts,
                        c10::IntArrayRef sizes, bool from_end);

/// self[..., indices[i] at dims[i], ...] = values, or += if `accumulate`. Pre: values broadcast to the indexed elements.
void put_window(const at::Tensor& self, at::TensorList indices, const at::Tensor& values, c10::IntArrayRef dims,
                c10::IntArrayRef firsts, c10::IntArrayRef sizes, bool from_end, bool accumulate);

/// The `size` of a dim whose window is all of it, whatever its size.
inline constexpr int64_t kWholeDim = -1;

/// at::gather(). Pre: other dims are of equal extent; indices are in [0, size).
at::Tensor gather_window(const at::Tensor& self, const at::Tensor& index, int64_t dim, int64_t first, int64_t size);

/// at::scatter() for mode "", at::scatter() with `reduce` for "add" and "multiply", else at::scatter_reduce(); in place.
/// Pre: as for gather_window(); `src` has the index's sizes or 0 dims.
void scatter_window(const at::Tensor& self, const at::Tensor& index, const at::Tensor& src, int64_t dim, int64_t first,
                    int64_t size, std::string_view mode, bool include_self);

}  // namespace shardwise
