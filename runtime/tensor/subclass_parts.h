// runtime/tensor/subclass_parts.h: parts of an object of a class of Python's (runtime/tensor/subclass.h), by the class's own operators.
//
//   at::Tensor rows = part_of("redistribute", object, held, wanted);          // aten.slice, or another way that the class has
//   at::Tensor whole = joined("redistribute", {{box, rows}, {below, other}});  // aten.cat, or its inner tensors joined
#pragma once

#include "placements/layout.h"
#include "runtime/tensor/subclass.h"

#include <utility>
#include <vector>

namespace shardwise {

/// Throws: c10::ValueError where the layout wants more of the object than parts along dims, or all of it.
void check_placed(const char* op, const at::Tensor& object, const Layout& layout);

/// The part `wanted` of an object that is the box `held`: the object itself where that is all of it. It may share the object's memory.
/// Throws: c10::NotImplementedError naming the class, where it answers none of the operators that take parts.
at::Tensor part_of(const char* op, at::Tensor object, const Box& held, const Box& wanted);

/// An object of the same values and memory of its own, by the class's aten.clone, or by clones of its inner tensors.
at::Tensor copy_of(const char* op, const at::Tensor& object);

/// How the class's own slice along a dim goes through the inner tensors.
struct Cut {
  std::vector<int64_t>
      dims;  // by inner tensor: the dim that is cut with the object's; -1 where the slice has the whole tensor
  bool keeps_context;  // all else of the slice is as of the object
};
/// Pre: the object has elements along `dim`. Throws: c10::NotImplementedError as part_of(), or where an inner tensor is cut otherwise.
Cut cut_of(const char* op, const at::Tensor& object, int64_t dim);

using Parts = std::vector<std::pair<Box, at::Tensor>>;

/// The object that these parts, which tile a box, make up: the part itself where there is one.
/// Throws: c10::NotImplementedError where the class refuses aten.cat and does not keep_context() along the dim, c10::ValueError where inner
/// tensors that a slice does not cut differ from part to part.
at::Tensor joined(const char* op, Parts parts);

}  // namespace shardwise
