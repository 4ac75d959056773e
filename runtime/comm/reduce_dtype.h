// runtime/comm/reduce_dtype.h: the dtype in which backends reduce a tensor, and the neutral elements of reductions.
//
//   bool                       uint8; sum is "any", product is "all"
//   int16, uint16, uint32, ... the next wider dtype that every backend reduces
//   avg of half                float32: 4 x 40,000 overflows half; their mean does not
//   complex                    pairs of reals (sum and avg)
//   max, min of floats         integers in the floats' order, so that a NaN gives NaN, as in the dense result
//   all others                 unchanged, in place
#pragma once

#include "placements/placement.h"

#include <ATen/core/Tensor.h>
#include <torch/csrc/distributed/c10d/Types.hpp>

namespace shardwise {

/// The dtype in which values of `dtype` are added, multiplied or (unless they are floats) compared. Every backend reduces it, and the sum
/// of an avg does not overflow in it where the avg itself would not.
c10::ScalarType reduce_dtype(c10::ScalarType dtype, Reduce reduce);

/// The neutral element of a reduction: 0 for sum and avg, 1 for product, the lowest value for max, the highest for min.
c10::Scalar identity_of(Reduce reduce, c10::ScalarType dtype);

/// The operator of `reduce`: SUM for avg, because not every backend divides.
c10d::ReduceOp::RedOpType red_op(Reduce reduce);

/// Writes the combination of `a` and `b` into `result`, which may be one of them. All have one dtype. AVG adds.
void combine(at::Tensor result, const at::Tensor& a, const at::Tensor& b, c10d::ReduceOp::RedOpType op);
/// Combines `term` into `total`.
inline void accumulate(const at::Tensor& total, const at::Tensor& term, c10d::ReduceOp::RedOpType op) {
  combine(total, total, term, op);
}

struct ReduceForm {
  at::Tensor tensor;  // contiguous; shares the caller's memory if its dtype is reduced unchanged
  c10d::ReduceOp::RedOpType op;
};

/// Throws: c10::TypeError if `reduce` is undefined for the dtype (avg of integers, max of complex numbers).
void check_reducible(const at::Tensor& tensor, Reduce reduce);

/// Pre: check_reducible(tensor, reduce). Cost: a copy if the dtype is reduced in another one.
ReduceForm to_reduce_form(const at::Tensor& tensor, Reduce reduce);

/// Writes the result of reducing `form` over `n_ranks` into `tensor`, which to_reduce_form() got. Divides the sum of an avg.
void from_reduce_form(const ReduceForm& form, const at::Tensor& tensor, Reduce reduce, int64_t n_ranks);

}  // namespace shardwise
