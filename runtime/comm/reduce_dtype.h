// runtime/comm/reduce_dtype.h: the form in which a tensor travels while it is reduced.
//
//   bool                       uint8; sum is "any", product is "all"
//   int16, uint16, uint32, ... the next wider dtype that every backend reduces
//   complex                    pairs of reals (sum and avg)
//   max, min of floats         integers in the floats' order, so that a NaN anywhere gives NaN, as in the dense result
//   all else                   itself, in place
#pragma once

#include "placements/placement.h"

#include <ATen/core/Tensor.h>
#include <torch/csrc/distributed/c10d/Types.hpp>

namespace shardwise {

struct Wire {
  at::Tensor tensor;             // contiguous; shares the caller's memory where its dtype travels as it is
  c10d::ReduceOp::RedOpType op;  // kAvg travels as SUM: not every backend divides
};

/// Throws: c10::TypeError where `reduce` has no meaning for the dtype (avg of integers, max of complex numbers).
void check_reducible(const at::Tensor& tensor, Reduce reduce);

/// Pre: check_reducible(tensor, reduce). Cost: a copy where the dtype differs from the travelling one.
Wire to_wire(const at::Tensor& tensor, Reduce reduce);

/// Writes what came back into `tensor`, the one that to_wire got.
void from_wire(const Wire& wire, const at::Tensor& tensor, Reduce reduce);

}  // namespace shardwise
