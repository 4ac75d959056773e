// runtime/tensor/subclass_parts.h: takes parts of an object of a Python subclass (runtime/tensor/subclass.h) with the class's own
// operators.
//
//   at::Tensor rows = part_of("redistribute", object, held, wanted);          // aten.slice, or another operator that the class has
//   at::Tensor whole = joined("redistribute", {{box, rows}, {below, other}});  // aten.cat, or joined inner tensors
#pragma once

#include "placements/layout.h"
#include "runtime/tensor/subclass.h"

#include <utility>
#include <vector>

namespace shardwise {

/// Throws: c10::ValueError if the layout has other placements than Replicate and Shards along dims.
void check_placed(const char* op, const at::Tensor& object, const Layout& layout);

/// The part `wanted` of an object whose box is `held`, or the object itself if that is all of it. May share the object's memory.
/// Throws: c10::NotImplementedError naming the class, if it implements none of the operators that take parts.
at::Tensor part_of(const char* op, at::Tensor object, const Box& held, const Box& wanted);

/// An object with the same values in memory of its own, made by the class's aten.clone or by clones of its inner tensors.
at::Tensor copy_of(const char* op, const at::Tensor& object);

/// How the class's own slice along a dim cuts the inner tensors.
struct Cut {
  std::vector<int64_t>
      dims;            // by inner tensor: the dim that is cut with the object's; -1 if the slice has the whole tensor
  bool keeps_context;  // the slice's context is that of the object
};
/// Pre: the object has elements along `dim`. Throws: c10::NotImplementedError as part_of(), or if an inner tensor is cut in another way.
Cut cut_of(const char* op, const at::Tensor& object, int64_t dim);

using Parts = std::vector<std::pair<Box, at::Tensor>>;

/// The object that is made up of these parts, which tile a box; the part itself if there is only one.
/// Throws: c10::NotImplementedError if the class refuses aten.cat and a slice along the dim changes its context; c10::ValueError if inner
/// tensors that a slice does not cut differ between parts.
at::Tensor joined(const char* op, Parts parts);

}  // namespace shardwise
