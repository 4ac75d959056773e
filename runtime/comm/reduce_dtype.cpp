#include "runtime/comm/reduce_dtype.h"

#include <ATen/ops/isnan.h>
#include <ATen/ops/view_as_real.h>
#include <fmt/format.h>

#include <limits>

namespace shardwise {
namespace {

using RedOp = c10d::ReduceOp::RedOpType;

RedOp red_op(Reduce reduce) {
  switch (reduce) {
    case Reduce::kSum:
    case Reduce::kAvg:
      return RedOp::SUM;
    case Reduce::kMax:
      return RedOp::MAX;
    case Reduce::kMin:
      return RedOp::MIN;
    case Reduce::kProduct:
      return RedOp::PRODUCT;
  }
  TORCH_INTERNAL_ASSERT(false, "unknown Reduce");
}

bool is_extremum(Reduce reduce) { return reduce == Reduce::kMax || reduce == Reduce::kMin; }

bool is_ordered(const at::Tensor& tensor, Reduce reduce) { return is_extremum(reduce) && tensor.is_floating_point(); }

/// The dtype in which the numbers of `dtype` are summed, multiplied or, unless they are floats, compared.
at::ScalarType wire_dtype(at::ScalarType dtype) {
  switch (dtype) {
    case at::kBool:
      return at::kByte;
    case at::kShort:
    case at::kUInt16:
      return at::kInt;
    case at::kUInt32:
    case at::kUInt64:
      return at::kLong;
    default:
      return at::isFloat8Type(dtype) ? at::kFloat : dtype;
  }
}

/// Swaps the bits of floats and integers of the same order (its own inverse): negative floats grow downwards.
at::Tensor flip_negative(const at::Tensor& bits, int64_t mask) {
  return bits.bitwise_xor(bits.bitwise_right_shift(bits.element_size() * 8 - 1).bitwise_and(mask));
}

int64_t largest(const at::Tensor& integers) {
  return integers.element_size() == 8 ? std::numeric_limits<int64_t>::max() : std::numeric_limits<int32_t>::max();
}

at::Tensor to_ordered(const at::Tensor& floats, Reduce reduce) {
  const at::Tensor wide = floats.scalar_type() == at::kDouble ? floats : floats.to(at::kFloat);
  const at::Tensor bits = wide.view(wide.scalar_type() == at::kDouble ? at::kLong : at::kInt);
  const int64_t mask = largest(bits);
  const int64_t nan = reduce == Reduce::kMax ? mask : -mask - 1;
  return flip_negative(bits, mask).masked_fill_(at::isnan(wide), nan);
}

at::Tensor from_ordered(const at::Tensor& integers) {
  return flip_negative(integers, largest(integers))
      .view(integers.scalar_type() == at::kLong ? at::kDouble : at::kFloat);
}

}  // namespace

void check_reducible(const at::Tensor& tensor, Reduce reduce) {
  const at::ScalarType dtype = tensor.scalar_type();
  const bool is_averageable = tensor.is_floating_point() || tensor.is_complex();
  TORCH_CHECK_TYPE(
      reduce != Reduce::kAvg || is_averageable,
      fmt::format("[all_reduce] avg of {} has no exact result: avg needs floating point. Use sum, or convert first.",
                  at::toString(dtype)));
  const bool has_meaning = tensor.is_complex() ? !is_extremum(reduce) && reduce != Reduce::kProduct
                                               : dtype != at::kUInt64 || !is_extremum(reduce);
  TORCH_CHECK_TYPE(has_meaning, fmt::format("[all_reduce] {} of {} is not supported. Convert the tensor first.",
                                            to_string(reduce), at::toString(dtype)));
}

Wire to_wire(const at::Tensor& tensor, Reduce reduce) {
  if (tensor.is_complex()) return {at::view_as_real(tensor), red_op(reduce)};
  if (is_ordered(tensor, reduce)) return {to_ordered(tensor, reduce), red_op(reduce)};
  const at::Tensor wire = tensor.to(wire_dtype(tensor.scalar_type()));
  if (tensor.scalar_type() == at::kBool && !is_extremum(reduce))
    return {wire, reduce == Reduce::kSum ? RedOp::MAX : RedOp::MIN};
  return {wire, red_op(reduce)};
}

void from_wire(const Wire& wire, const at::Tensor& tensor, Reduce reduce) {
  if (is_ordered(tensor, reduce))
    tensor.copy_(from_ordered(wire.tensor));
  else if (!wire.tensor.is_alias_of(tensor))
    tensor.copy_(wire.tensor);
}

}  // namespace shardwise
