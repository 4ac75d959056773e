// runtime/comm/reduce_dtype.h: the form in which backends reduce a tensor, and what leaves a reduction unchanged.
//
//   bool                       uint8; sum is "any", product is "all"
//   int16, uint16, uint32, ... the next wider dtype that every backend reduces
//   avg of half                float32: 4 x 40,000 overflows half; their mean does not
//   complex                    pairs of reals (sum and avg)
//   max, min of floats         integers in the floats' order, so that a NaN anywhere gives NaN, as in the dense result
//   all else                   itself, in place
#pragma once

#include "placements/placement.h"

#include <ATen/core/Tensor.h>
#include <torch/csrc/distributed/c10d/Types.hpp>

namespace shardwise {

/// The dtype in which values of `dtype` are added, multiplied or, unless they are floats, compared: one that every backend reduces, and in
/// which an avg's sum does not overflow where the avg itself would not.
c10::ScalarType reduce_dtype(c10::ScalarType dtype, Reduce reduce);

/// What leaves a reduction unchanged: 0 for sum and avg, 1 for product, the lowest value for max, the highest for min.
c10::Scalar identity_of(Reduce reduce, c10::ScalarType dtype);

struct ReduceForm {
  at::Tensor tensor;             // contiguous; shares the caller's memory where that is reduced as it is
  c10d::ReduceOp::RedOpType op;  // of avg SUM: not every backend divides
};

/// Throws: c10::TypeError where `reduce` has no meaning for the dtype (avg of integers, max of complex numbers).
void check_reducible(const at::Tensor& tensor, Reduce reduce);

/// Pre: check_reducible(tensor, reduce). Cost: a copy where the dtype is not the reduced one.
ReduceForm to_reduce_form(const at::Tensor& tensor, Reduce reduce);

/// Writes what was reduced over `n_ranks` into `tensor`, the one that to_reduce_form got. Divides an avg's sum.
void from_reduce_form(const ReduceForm& form, const at::Tensor& tensor, Reduce reduce, int64_t n_ranks);

}  // namespace shardwise
