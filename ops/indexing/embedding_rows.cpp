#include "ops/indexing/embedding_rows.h"

#include <ATen/Dispatch.h>
#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cstring>

namespace shardwise {
namespace {

std::vector<int64_t> shape_of_result(const at::Tensor& ids, int64_t width) {
  std::vector<int64_t> shape = ids.sizes().vec();
  shape.push_back(width);
  return shape;
}

/// Copies rows in one pass, whatever their dtype. Pre: on the CPU, the elements of a row adjoin.
void copy_rows(const at::Tensor& rows, const at::Tensor& ids, int64_t first_row, const at::Tensor& result) {
  const auto row_bytes = static_cast<size_t>(rows.size(1)) * rows.element_size();
  const auto step = static_cast<int64_t>(rows.element_size()) * rows.stride(0);
  const int64_t n_rows = rows.size(0);
  const auto* from = static_cast<const char*>(rows.const_data_ptr());
  auto* to = static_cast<char*>(result.mutable_data_ptr());
  const int64_t grain = std::max<int64_t>(1, (1 << 15) / static_cast<int64_t>(row_bytes));
  AT_DISPATCH_INDEX_TYPES(ids.scalar_type(), "lookup_rows", [&] {
    const auto* id = ids.const_data_ptr<index_t>();
    at::parallel_for(0, ids.numel(), grain, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const int64_t row = id[i] - first_row;
        char* into = to + static_cast<size_t>(i) * row_bytes;
        if (row >= 0 && row < n_rows)
          std::memcpy(into, from + row * step, row_bytes);
        else
          std::memset(into, 0, row_bytes);
      }
    });
  });
}

}  // namespace

at::Tensor lookup_rows(const at::Tensor& rows, const at::Tensor& ids, int64_t first_row) {
  const auto shape = shape_of_result(ids, rows.size(1));
  if (ids.numel() == 0 || rows.numel() == 0) return at::zeros(shape, rows.options());
  if (rows.is_cpu() && (rows.stride(1) == 1 || rows.size(1) == 1)) {
    at::Tensor result = at::empty(shape, rows.options());
    copy_rows(rows, ids.contiguous(), first_row, result);
    return result;
  }
  const at::Tensor row = ids.reshape(-1) - first_row;
  const at::Tensor is_elsewhere = row.lt(0).logical_or_(row.ge(rows.size(0)));
  return rows.index_select(0, row.clamp(0, rows.size(0) - 1)).masked_fill_(is_elsewhere.unsqueeze(1), 0).view(shape);
}

at::Tensor add_rows(const at::Tensor& grad, const at::Tensor& ids, int64_t first_row, int64_t n_rows, int64_t skipped) {
  const int64_t width = grad.size(-1);
  at::Tensor result = at::zeros({n_rows, width}, grad.options());
  if (ids.numel() == 0 || result.numel() == 0) return result;
  const at::Tensor flat = ids.reshape(-1);
  const at::Tensor is_here =
      flat.ge(first_row).logical_and_(flat.lt(first_row + n_rows)).logical_and_(flat.ne(skipped));
  const at::Tensor here = is_here.nonzero().view(-1);
  return result.index_add_(0, flat.index_select(0, here) - first_row, grad.reshape({-1, width}).index_select(0, here));
}

}  // namespace shardwise
