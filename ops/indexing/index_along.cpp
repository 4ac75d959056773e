// ops/indexing/index_along.cpp: indexing one dim by a vector (index_select, index_add, index_copy, index_fill,
// index_reduce), and elements by their row-major number (take, put).
#include "ops/families.h"
#include "ops/indexing/index.h"
#include "ops/indexing/index_operand.h"
#include "ops/support/by_rule.h"
#include "ops/support/dim_pieces.h"
#include "ops/support/plain_self.h"
#include "runtime/api/dtensor.h"
#include "runtime/comm/tracing.h"
#include "runtime/tensor/registrations.h"
#include "text/check.h"

#include <ATen/Functions.h>
#include <c10/core/WrapDimMinimal.h>

#include <numeric>

namespace shardwise {
namespace {

/// A vector of indices, unchecked, for dim `of_dim` of `self`. Only index_fill accepts negative ones.
Indexed along(const char* op, const at::Tensor& self, int64_t of_dim, const at::Tensor& index,
              bool may_be_negative = false) {
  const int64_t dim = c10::maybe_wrap_dim(of_dim, self.dim());
  SW_CHECK_INDEX(index.dim() <= 1, "[{}] Index is supposed to be a vector, but got dim: {}.", op, index.dim());
  SW_CHECK_TYPE(index.scalar_type() == at::kLong || index.scalar_type() == at::kInt,
                "[{}] Expected dtype int32 or int64 for index, got {}.", op, c10::toString(index.scalar_type()));
  return {{at_least_1d(index_operand(op, index, spec_of(self)->mesh()))}, {dim}, may_be_negative, op};
}

at::Tensor index_select(const at::Tensor& self, int64_t dim, const at::Tensor& index) {
  TORCH_CHECK(self.dim() > 0 || index.numel() == 1, "index_select(): Index to scalar can have only 1 value, got ",
              index.numel(), " value(s)");
  const at::Tensor found = look_up(at_least_1d(self), along("aten::index_select", self, dim, index));
  return self.dim() == 0 ? found.squeeze(0) : found;
}

/// The source: a slice per index along the dim, with self's sizes elsewhere.
at::Tensor checked_source(const char* op, const at::Tensor& self, const Indexed& at, const at::Tensor& source) {
  SW_CHECK(self.scalar_type() == source.scalar_type(), "[{}] self ({}) and source ({}) must have the same scalar type",
           op, c10::toString(self.scalar_type()), c10::toString(source.scalar_type()));
  const std::vector<int64_t> sizes = at.sizes_of(at_least_1d(self));
  const bool is_one = source.dim() == 0 && self.dim() <= 1 && sizes[0] == 1;
  SW_CHECK_INDEX(
      is_one || source.sizes() == sizes || (self.dim() == 0 && source.numel() == sizes[0]),
      "[{}] source of shape [{}] does not fit: the {} indices for dimension {} of self of shape [{}] need [{}].", op,
      fmt::join(source.sizes(), ", "), at.indices[0].numel(), at.dims[0], fmt::join(self.sizes(), ", "),
      fmt::join(sizes, ", "));
  return at_least_1d(source);
}

/// Values for indices of one dim. A tensor without dims counts as a vector of one element.
struct Write {
  Indexed at;
  at::Tensor values;
  bool accumulates = false;
  bool keeps_strides = false;  // of self, in the result; otherwise it is contiguous

  at::Tensor written(const at::Tensor& self) const {
    const auto format = keeps_strides ? at::MemoryFormat::Preserve : at::MemoryFormat::Contiguous;
    if (at.indices[0].numel() == 0) return self.clone(format);
    const at::Tensor from = keeps_strides ? self : self.contiguous();
    const at::Tensor result = put(at_least_1d(from), at, values, accumulates);
    return self.dim() > 0 ? result : result.squeeze(0);
  }
  void write(const at::Tensor& self) const {
    if (at.indices[0].numel() > 0) put_(at_least_1d(self), at, values, accumulates);
  }
};

/// Casts `alpha` to the dtype of `source`, as torch's kernels do, and not the other way round.
at::Tensor scaled(const at::Tensor& source, const at::Scalar& alpha) {
  if (alpha.equal(1)) return source;
  return source.mul(at::full({}, alpha, at::TensorOptions().dtype(source.scalar_type()).device(source.device())));
}

Write index_add(const at::Tensor& self, int64_t dim, const at::Tensor& index, const at::Tensor& source,
                const at::Scalar& alpha) {
  Indexed at = along("aten::index_add", self, dim, index);
  const at::Tensor values = scaled(checked_source("aten::index_add", self, at, source), alpha);
  return {std::move(at), values, /*accumulates=*/true};
}

Write index_copy(const at::Tensor& self, int64_t dim, const at::Tensor& index, const at::Tensor& source) {
  Indexed at = along("aten::index_copy", self, dim, index);
  const at::Tensor values = checked_source("aten::index_copy", self, at, source);
  return {std::move(at), values};
}

at::Tensor value_of(const at::Tensor& self, const at::Scalar& value) {
  return at::full({}, value, at::TensorOptions().dtype(self.scalar_type()).device(self.device()));
}
at::Tensor value_of(const at::Tensor& self, const at::Tensor& value) {
  SW_CHECK(value.dim() == 0,
           "[aten::index_fill] Only supports 0-dimensional value tensors, but got tensor with {} dimension(s).",
           value.dim());
  return value.to(self.scalar_type());
}

template <class Value>
Write index_fill(const at::Tensor& self, int64_t dim, const at::Tensor& index, const Value& value) {
  return {along("aten::index_fill", self, dim, index, /*may_be_negative=*/true), value_of(self, value),
          /*accumulates=*/false, /*keeps_strides=*/true};
}

/// torch's formula finds the gradient of `value` by the unique indices, whose number depends on values. A graph has a mask instead.
at::Tensor differentiable_fill(c10::DispatchKeySet keys, const at::Tensor& self, int64_t dim, const at::Tensor& index,
                               const at::Tensor& value) {
  if (!is_tracing() || !value.requires_grad())
    return at::_ops::index_fill_int_Tensor::redispatch(formula_keys(keys), self, dim, index, value);
  const at::Tensor mask = at::zeros_like(self, at::kBool).index_fill(dim, index, 1);
  return at::where(mask, value.to(self.scalar_type()), self);
}

at::Tensor& differentiable_fill_(c10::DispatchKeySet keys, at::Tensor& self, int64_t dim, const at::Tensor& index,
                                 const at::Tensor& value) {
  return is_tracing() && value.requires_grad()
             ? self.copy_(at::index_fill(self, dim, index, value))
             : at::_ops::index_fill__int_Tensor::redispatch(formula_keys(keys), self, dim, index, value);
}

/// The index of each element of `source`, for scatter_reduce.
at::Tensor index_of_each(const Indexed& at, const at::Tensor& source) {
  std::vector<int64_t> sizes(source.dim(), 1);
  sizes[at.dims[0]] = -1;
  return at.indices[0].to(at::kLong).view(sizes).expand(source.sizes());
}

at::Tensor reduce_along(const at::Tensor& self, int64_t dim, const at::Tensor& index, const at::Tensor& source,
                        std::string_view reduce, bool include_self) {
  SW_CHECK(reduce == "prod" || reduce == "mean" || reduce == "amax" || reduce == "amin",
           "[aten::index_reduce] reduce argument must be either prod, mean, amax or amin, got {}.", reduce);
  const Indexed at = along("aten::index_reduce", self, dim, index);
  const at::Tensor values = checked_source("aten::index_reduce", self, at, source);
  const at::Tensor result =
      index_reduced(at_least_1d(self), at.dims[0], index_of_each(at, values), values, reduce, include_self);
  return self.dim() == 0 ? result.squeeze(0) : result;
}

/// Elements of `self` by number: a vector that shares its memory and the numbers, or, if sharding splits another dim than the first, `self` and the
/// position along each dim. A negative number's position counts from the end along the first dim alone.
struct Numbered {
  at::Tensor self;
  Indexed at;

  Numbered(const char* op, const at::Tensor& of_self, const at::Tensor& index) : self(of_self) {
    SW_CHECK(index.scalar_type() == at::kLong, "[{}] Expected a long tensor for index, but got {}", op,
             c10::toString(index.scalar_type()));
    SW_CHECK_INDEX(self.numel() > 0 || index.numel() == 0, "[{}] tried to take from an empty tensor of shape [{}].", op,
                   fmt::join(self.sizes(), ", "));
    std::vector<int64_t> inner(std::max<int64_t>(self.dim() - 1, 0));
    std::iota(inner.begin(), inner.end(), 1);
    at = {{index_operand(op, index, spec_of(self)->mesh())}, {0}, /*from_end=*/true, op};
    if (inner.empty() || !is_sharded_along(self, inner)) {
      self = self.reshape(-1);
      return;
    }
    at::Tensor rest = checked_indices(op, index_of(op, index, self), 0, -self.numel(), self.numel());
    at = {{}, inner};
    for (int64_t dim = self.dim() - 1; dim > 0; --dim) {
      at.indices.insert(at.indices.begin(), rest.remainder(self.size(dim)));
      rest = rest.div(self.size(dim), "floor");
    }
    at.indices.insert(at.indices.begin(), rest);
    at.dims.insert(at.dims.begin(), 0);
  }
};

at::Tensor take(const at::Tensor& self, const at::Tensor& index) {
  const Numbered numbered("aten::take", self, index);
  return look_up(numbered.self, numbered.at);
}

at::Tensor put_by_number(const at::Tensor& self, const at::Tensor& index, const at::Tensor& source, bool accumulate) {
  const Numbered numbered("aten::put", self, index);
  SW_CHECK(self.scalar_type() == source.scalar_type(),
           "[aten::put] Expected self and source to have the same dtype, got {} and {}.",
           c10::toString(self.scalar_type()), c10::toString(source.scalar_type()));
  SW_CHECK(source.numel() == index.numel(),
           "[aten::put] Expected source and index to have the same number of elements, got {} and {}.", source.numel(),
           index.numel());
  if (index.numel() == 0) return self.clone();
  const at::Tensor values = source.dim() == 0 ? source : source.reshape(index.sizes());
  return in_order_of(self, put(numbered.self, numbered.at, values, accumulate).view(self.sizes()));
}

}  // namespace

void register_index_along(RuleTable& /*table*/) {
  add_composition_with_plain_self<&index_select>("index_select");
  add_composition_with_plain_self<&take>("take");
  add_writes<&index_add>("index_add", "index_add_");
  add_writes<&index_copy>("index_copy", "index_copy_");
  add_writes<&index_fill<at::Scalar>>("index_fill.int_Scalar", "index_fill_.int_Scalar");
  add_writes<&index_fill<at::Tensor>>("index_fill.int_Tensor", "index_fill_.int_Tensor");
  aten_autograd_kernels().impl("index_fill.int_Tensor", &differentiable_fill);
  aten_autograd_kernels().impl("index_fill_.int_Tensor", &differentiable_fill_);
  add_with_plain_self<&reduce_along>("index_reduce");
  add_with_plain_self<&CopiedBack<&reduce_along>::write>("index_reduce_");
  add_with_plain_self<&put_by_number>("put");
  add_with_plain_self<&CopiedBack<&put_by_number>::write>("put_");
}

}  // namespace shardwise
