#include "runtime/comm/reduce_dtype.h"

#include "placements/placement_list.h"
#include "text/check.h"

#include <ATen/Dispatch_v2.h>
#include <ATen/ops/isnan.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/minimum.h>
#include <ATen/ops/view_as_complex.h>
#include <ATen/ops/view_as_real.h>

#include <algorithm>
#include <limits>
#include <utility>

namespace shardwise {
namespace {

using RedOp = c10d::ReduceOp::RedOpType;

bool is_extremum(Reduce reduce) { return reduce == Reduce::kMax || reduce == Reduce::kMin; }

bool is_ordered(const at::Tensor& tensor, Reduce reduce) { return is_extremum(reduce) && tensor.is_floating_point(); }

/// Maps the bits of floats to integers in the same order, and back (it is its own inverse). Negative floats' bits order backwards.
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

void combine(at::Tensor result, const at::Tensor& a, const at::Tensor& b, RedOp op) {
  using Combine = at::Tensor& (*)(at::Tensor& result, const at::Tensor& a, const at::Tensor& b);
  static constexpr std::pair<RedOp, Combine> kKnown[] = {
      {RedOp::PRODUCT, &at::mul_out},      {RedOp::MIN, &at::minimum_out},    {RedOp::MAX, &at::maximum_out},
      {RedOp::BAND, &at::bitwise_and_out}, {RedOp::BOR, &at::bitwise_or_out}, {RedOp::BXOR, &at::bitwise_xor_out}};
  const auto* const known = std::ranges::find(kKnown, op, &std::pair<RedOp, Combine>::first);
  if (known == std::end(kKnown))
    at::add_out(result, a, b);
  else
    known->second(result, a, b);
}

c10::Scalar identity_of(Reduce reduce, c10::ScalarType dtype) {
  if (reduce == Reduce::kProduct) return 1;
  if (is_linear(reduce)) return 0;
  const bool is_max = reduce == Reduce::kMax;
  if (c10::isFloatingType(dtype))
    return is_max ? -std::numeric_limits<double>::infinity() : std::numeric_limits<double>::infinity();
  if (dtype == c10::ScalarType::Bool) return !is_max;
  return AT_DISPATCH_V2(
      dtype, "identity_of", AT_WRAP([&] {
        return c10::Scalar(is_max ? std::numeric_limits<scalar_t>::lowest() : std::numeric_limits<scalar_t>::max());
      }),
      AT_EXPAND(AT_INTEGRAL_TYPES));
}

c10::ScalarType reduce_dtype(c10::ScalarType dtype, Reduce reduce) {
  switch (dtype) {
    case at::kBool:
      return at::kByte;
    case at::kShort:
    case at::kUInt16:
      return at::kInt;
    case at::kUInt32:
    case at::kUInt64:
      return at::kLong;
    case at::kHalf:
      return reduce == Reduce::kAvg ? at::kFloat : dtype;
    case at::kComplexHalf:
      return reduce == Reduce::kAvg ? at::kComplexFloat : dtype;
    default:
      return at::isFloat8Type(dtype) ? at::kFloat : dtype;
  }
}

void check_reducible(const at::Tensor& tensor, Reduce reduce) {
  const at::ScalarType dtype = tensor.scalar_type();
  const bool is_averageable = tensor.is_floating_point() || tensor.is_complex();
  SW_CHECK_TYPE(reduce != Reduce::kAvg || is_averageable,
                "[all_reduce] avg of {} has no exact result: avg needs floating point. Use sum, or convert first.",
                at::toString(dtype));
  const bool has_meaning = tensor.is_complex() ? !is_extremum(reduce) && reduce != Reduce::kProduct
                                               : dtype != at::kUInt64 || !is_extremum(reduce);
  SW_CHECK_TYPE(has_meaning, "[all_reduce] {} of {} is not supported. Convert the tensor first.", to_string(reduce),
                at::toString(dtype));
}

ReduceForm to_reduce_form(const at::Tensor& tensor, Reduce reduce) {
  if (is_ordered(tensor, reduce)) return {to_ordered(tensor, reduce), red_op(reduce)};
  const at::Tensor wide = tensor.to(reduce_dtype(tensor.scalar_type(), reduce));
  if (wide.is_complex()) return {at::view_as_real(wide), red_op(reduce)};
  if (tensor.scalar_type() == at::kBool && !is_extremum(reduce))
    return {wide, reduce == Reduce::kSum ? RedOp::MAX : RedOp::MIN};
  return {wide, red_op(reduce)};
}

void from_reduce_form(const ReduceForm& form, const at::Tensor& tensor, Reduce reduce, int64_t n_ranks) {
  if (reduce == Reduce::kAvg) form.tensor.div_(n_ranks);
  if (form.tensor.is_alias_of(tensor)) return;
  if (is_ordered(tensor, reduce))
    tensor.copy_(from_ordered(form.tensor));
  else
    tensor.copy_(tensor.is_complex() ? at::view_as_complex(form.tensor) : form.tensor);
}

}  // namespace shardwise
