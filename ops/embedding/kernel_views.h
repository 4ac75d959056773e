// ops/embedding/kernel_views.h: tensors as the kernels see them: pointers, steps and element types. For sources of this folder.
#pragma once

#include "kernels/cuda/kernels.h"
#include "ops/embedding/kernel_launch.h"
#include "ops/embedding/row_kernels.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <optional>

namespace shardwise {

namespace cuda = kernels::cuda;

/// nullopt for a dtype that kernels cannot add.
std::optional<kernels::Element> maybe_element(at::ScalarType dtype);
/// Throws: c10::TypeError if maybe_element() is nullopt.
kernels::Element element_of(at::ScalarType dtype);
/// For kernels that only copy: any dtype of 2, 4 or 8 bytes becomes an element of that size.
kernels::Element element_of_copies(const at::Tensor& rows);
/// The dtype of sums: float64 for doubles, else float32.
at::ScalarType sum_type(at::ScalarType dtype);
/// int64, on the tensor's device.
at::TensorOptions numbers_like(const at::Tensor& tensor);
/// `rows` with stride 1 along the last dim.
at::Tensor with_dense_rows(const at::Tensor& rows);

/// The tensor's memory; null on meta, where no kernel runs.
template <class T = void>
T* memory_of(const at::Tensor& tensor) {
  return tensor.is_meta() ? nullptr : static_cast<T*>(tensor.mutable_data_ptr());
}
template <class T = void>
const T* const_memory_of(const at::Tensor& tensor) {
  return tensor.is_meta() ? nullptr : static_cast<const T*>(tensor.const_data_ptr());
}

/// Null for an undefined tensor.
const int64_t* numbers_of(const at::Tensor& tensor);
kernels::Ids ids_of(const at::Tensor& ids);
/// Pre: with_dense_rows().
kernels::Rows rows_of(const at::Tensor& rows, int64_t first_row, kernels::Element element);
kernels::Rows rows_of(const at::Tensor& rows, int64_t first_row);
kernels::GradRows grad_rows_of(const RowGrads& grads);
kernels::Bags bags_of(const IdBags& bags);

int64_t row_bytes(int64_t width, kernels::Element element);
inline int64_t row_bytes(const kernels::Rows& rows) { return row_bytes(rows.width, rows.element); }
inline int64_t row_bytes(const kernels::GradRows& rows) { return row_bytes(rows.width, rows.element); }
inline int64_t ids_per_bag(const kernels::Bags& bags) { return 1 + bags.n_ids / std::max<int64_t>(bags.n, 1); }

/// Runs a kernel that sums gradients by groups: `kernel(groups, begin, end)` for parts of [0, n), or `kernel(groups, scratch, stream)`.
template <class Kernel>
void run_sums(const kernels::GradRows& grads, const IdGroups& id_groups, int64_t n, int64_t bytes_per_item,
              const Kernel& kernel) {
  const kernels::Groups groups{numbers_of(id_groups.order), numbers_of(id_groups.starts), id_groups.n(),
                               id_groups.order.numel()};
  run_kernel(
      id_groups.order.device(),
      [&] { share_out(n, bytes_per_item, [&](int64_t begin, int64_t end) { kernel(groups, begin, end); }); },
      [&](auto stream) {
        const at::Tensor scratch =
            at::empty({cuda::sum_scratch(grads, groups.n_ids)}, id_groups.order.options().dtype(at::kByte));
        kernel(groups, scratch.mutable_data_ptr(), stream);
      });
}

}  // namespace shardwise
