#include "ops/embedding/kernel_views.h"

#include "runtime/comm/tracing.h"
#include "text/check.h"

namespace shardwise {

std::optional<kernels::Element> maybe_element(at::ScalarType dtype) {
  switch (dtype) {
    case at::kFloat:
      return kernels::Element::kFloat;
    case at::kDouble:
      return kernels::Element::kDouble;
    case at::kBFloat16:
      return kernels::Element::kBFloat16;
    case at::kHalf:
      return kernels::Element::kHalf;
    default:
      return {};
  }
}

kernels::Element element_of(at::ScalarType dtype) {
  const auto element = maybe_element(dtype);
  SW_CHECK_TYPE(element,
                "[embedding] the table is {}. Gradients, sums and norms of its rows take float32, float64, bfloat16 "
                "and float16. Convert it.",
                c10::toString(dtype));
  return *element;
}

kernels::Element element_of_copies(const at::Tensor& rows) {
  return rows.element_size() == 8   ? kernels::Element::kDouble
         : rows.element_size() == 4 ? kernels::Element::kFloat
                                    : kernels::Element::kHalf;
}

at::ScalarType sum_type(at::ScalarType dtype) { return dtype == at::kDouble ? at::kDouble : at::kFloat; }

at::TensorOptions numbers_like(const at::Tensor& tensor) {
  return at::TensorOptions().dtype(at::kLong).device(tensor.device());
}

at::Tensor with_dense_rows(const at::Tensor& rows) {
  return rows.stride(-1) == 1 || rows.size(-1) <= 1 ? rows : rows.contiguous();
}

const int64_t* numbers_of(const at::Tensor& tensor) {
  check_not_traced("embedding lookup");
  return tensor.defined() ? const_memory_of<int64_t>(tensor) : nullptr;
}

kernels::Ids ids_of(const at::Tensor& ids) {
  check_not_traced("embedding lookup");
  return {const_memory_of(ids), ids.scalar_type() == at::kInt, ids.numel()};
}

kernels::Rows rows_of(const at::Tensor& rows, int64_t first_row, kernels::Element element) {
  check_not_traced("embedding lookup");
  return {memory_of(rows), element, first_row, rows.size(0), rows.size(1), rows.stride(0)};
}
kernels::Rows rows_of(const at::Tensor& rows, int64_t first_row) {
  return rows_of(rows, first_row, element_of(rows.scalar_type()));
}

kernels::GradRows grad_rows_of(const RowGrads& grads) {
  return {const_memory_of(grads.values), element_of(grads.values.scalar_type()),
          grads.values.size(1),          grads.values.stride(0),
          numbers_of(grads.row_of),      grads.factors.defined() ? const_memory_of(grads.factors) : nullptr,
          numbers_of(grads.chosen)};
}

kernels::Bags bags_of(const IdBags& bags) {
  return {const_memory_of<int64_t>(bags.offsets), bags.offsets.numel(), bags.ids.numel(), bags.padding,
          bags.weights.defined() ? const_memory_of(bags.weights) : nullptr};
}

int64_t row_bytes(int64_t width, kernels::Element element) {
  return std::max<int64_t>(width, 1) * kernels::size_of(element);
}

}  // namespace shardwise
