// ops/indexing/index.cpp: indexing with tensors (index, index_put); our own operators take the local shard's offsets.
//
//   self                           indices          values          result of a lookup
//   sharded along an indexed dim   replicated       replicated      Partial(sum)
//   sharded along another dim      replicated       sharded alike   sharded alike
//   replicated                     sharded          sharded         sharded like indices; added values: Partial(sum)
#include "ops/indexing/index.h"

#include "ops/families.h"
#include "ops/indexing/index_grad.h"
#include "ops/indexing/index_operand.h"
#include "ops/indexing/masked_rows.h"
#include "ops/indexing/window.h"
#include "ops/support/by_rule.h"
#include "ops/support/derivative.h"
#include "ops/support/kernels.h"
#include "ops/support/own_operator.h"
#include "ops/support/plain_self.h"
#include "runtime/api/dtensor.h"
#include "runtime/tensor/below_autograd.h"
#include "text/check.h"

#include <ATen/ExpandUtils.h>
#include <ATen/ops/empty.h>

#include <utility>

namespace shardwise {
namespace {

std::vector<int64_t> sizes_at(const at::Tensor& self, c10::IntArrayRef dims) {
  std::vector<int64_t> sizes;
  for (int64_t dim : dims) sizes.push_back(self.size(dim));
  return sizes;
}

// Kernels of plain tensors.

at::Tensor& compute_put_(at::Tensor& self, at::TensorList indices, const at::Tensor& values, c10::IntArrayRef dims,
                         c10::IntArrayRef firsts, c10::IntArrayRef sizes, bool from_end, bool accumulate) {
  put_window(self, indices, values, dims, firsts, sizes, from_end, accumulate);
  return self;
}

at::Tensor compute_put(const at::Tensor& self, at::TensorList indices, const at::Tensor& values, c10::IntArrayRef dims,
                       c10::IntArrayRef firsts, c10::IntArrayRef sizes, bool from_end, bool accumulate) {
  at::Tensor result = self.clone();
  return compute_put_(result, indices, values, dims, firsts, sizes, from_end, accumulate);
}

// Rules of the operators.

/// A factor for each dim of self, and one for each dim of the index tensors' broadcast shape.
struct IndexAxes {
  Axes self, batch, result;
  Dims batch_sizes, result_sizes;
  std::vector<Axes> indices;

  IndexAxes(const OpCall& call, Signature& signature) {
    const c10::IntArrayRef of_self = call.operands[0].sizes;
    const std::vector<int64_t> dims = call.arg("dims").toIntVector();
    const auto of_indices = c10::ArrayRef<Operand>(call.operands).slice(1, dims.size());
    for (int64_t size : of_self) self.push_back({signature.add_factor(size)});
    for (const Operand& index : of_indices) batch_sizes = at::infer_size_dimvector(batch_sizes, index.sizes);
    for (int64_t size : batch_sizes) batch.push_back({signature.add_factor(size)});
    for (const Operand& index : of_indices) indices.push_back(broadcast_axes(index.sizes, batch_sizes, batch));
    const ResultDims result_dims(static_cast<int64_t>(of_self.size()), dims, static_cast<int64_t>(batch_sizes.size()));
    for (size_t i = 0; i < result_dims.of_self.size(); ++i) {
      const int64_t of_batch = static_cast<int64_t>(i) - result_dims.batch_begin;
      result.push_back(result_dims.of_self[i] < 0 ? batch[of_batch] : self[result_dims.of_self[i]]);
      result_sizes.push_back(signature.factors[result.back().factor].size);
    }
    signature.inputs = {self};
    signature.inputs.append(indices.begin(), indices.end());
  }
};

void describe_index(const OpCall& call, Signature& signature) {
  const IndexAxes axes(call, signature);
  if (call.operands[0].spec->dtype() == c10::ScalarType::Bool)
    for (const Axis& axis : axes.self) signature.factors[axis.factor].reduce = Reduce::kMax;
  signature.outputs = {axes.result};
}

void describe_put(const OpCall& call, Signature& signature) {
  const IndexAxes axes(call, signature);
  signature.inputs.push_back(broadcast_axes(call.operands.back().sizes, axes.result_sizes, axes.result));
  signature.outputs = {axes.self};
  const bool accumulates = call.arg("accumulate").toBool();
  for (const Axis& axis : axes.batch)
    signature.factors[axis.factor].reduce = accumulates ? std::optional(Reduce::kSum) : std::nullopt;
  const int values = static_cast<int>(call.operands.size()) - 1;
  for (const Reduce reduce : {Reduce::kSum, Reduce::kAvg})  // terms are written into terms
    signature.passing.push_back({reduce, reduce, {0, values}});
  if (!accumulates) return;
  signature.additive = {0};
  signature.linearity = Linearity::kEach;
}

void localize_index(const LocalCall& local, std::vector<c10::IValue>& args) {
  std::vector<int64_t> firsts = local.call.arg("dims").toIntVector();
  for (int64_t& first : firsts) first = local.inputs[0].offsets.empty() ? 0 : local.inputs[0].offsets[first];
  args[local.call.op.arg_index("firsts")] = std::move(firsts);
}

// Derivatives: index's is put with accumulate, and the reverse.

at::Tensor index_grad(const at::Tensor& grad, const Indexed& at, const SpecPtr& source) {
  const at::Tensor result = below_derivatives([&] {
    const at::NoGradGuard no_grad;
    const auto n_batch = grad.dim() - (source->dim() - static_cast<int64_t>(at.dims.size()));
    const at::Tensor sum = zeros_for_grad(*source, grad, ResultDims(source->dim(), at.dims, n_batch).of_self);
    put_(sum, at, grad, /*accumulate=*/true);
    return in_pieces_of(*source, sum);
  });
  carry_tangent(grad, result, [&](const at::Tensor& tangent) { return index_grad(tangent, at, source); });
  return with_derivative(grad, result, at.indices, "IndexBackwardBackward",
                         [dims = at.dims, from_end = at.from_end](const at::Tensor& outer, const variable_list& saved) {
                           return look_up(outer, {saved, dims, from_end});
                         });
}

/// `moved`: `self` or its values in another layout, which the lookup reads.
at::Tensor differentiable(const at::Tensor& self, const Indexed& at, const at::Tensor& moved) {
  const at::Tensor result = below_derivatives([&] { return look_up(moved, at); });
  carry_tangent(self, result, [&](const at::Tensor& tangent) { return look_up(tangent, at); });
  return with_derivative(self, result, at.indices, "IndexBackward",
                         [source = spec_of(self), dims = at.dims, from_end = at.from_end](const at::Tensor& grad,
                                                                                          const variable_list& saved) {
                           return index_grad(grad, {saved, dims, from_end}, source);
                         });
}

at::Tensor differentiable_index(const at::Tensor& self, at::TensorList indices, c10::IntArrayRef dims,
                                c10::IntArrayRef /*firsts*/, c10::IntArrayRef /*sizes*/, bool from_end) {
  return differentiable(self, {indices.vec(), dims.vec(), from_end}, self);
}

/// A tensor of layout `spec` without values, to ask a rule about.
at::Tensor stand_in(const SpecPtr& spec) {
  const BelowAutograd guard;
  const auto options = at::TensorOptions().dtype(spec->dtype()).device(spec->mesh()->device());
  Shards pieces;
  for (const Box& box : spec->boxes()) pieces.push_back(at::empty({}, options).expand(box.sizes));
  return wrap(spec, std::move(pieces));
}

/// Checks the indices `at`, if they are unchecked. Together with the check, `self`, the indices and `values` may move, to where the rule of the
/// operator takes them. `layouts`: the rule's answer for indices.
template <class Layouts>
void move_checked(at::Tensor& self, Indexed& at, at::Tensor* values, const Layouts& layouts) {
  const char* op = std::exchange(at.unchecked_of, nullptr);
  if (!op) return;
  const size_t n = at.dims.size();
  std::vector<IndexBounds> bounds;
  for (const int64_t dim : at.dims) bounds.push_back({dim, at.from_end ? -self.size(dim) : 0, self.size(dim)});
  std::vector<at::Tensor> operands{self};
  operands.insert(operands.end(), at.indices.begin(), at.indices.end());
  if (values) operands.push_back(*values);
  const auto wanted = [&] {
    std::vector<at::Tensor> indices = at.indices;
    for (at::Tensor& index : indices)
      if (const SpecPtr spec = layout_beside(index, self); spec != spec_of(index)) index = stand_in(spec);
    auto result = layouts(indices);
    for (size_t i = 0; i < n && !result.empty(); ++i)
      if (!result[i + 1]) result[i + 1] = spec_of(indices[i]);
    return result;
  };
  if (move_in_range(op, operands, bounds, /*fails_as_gather=*/false, wanted)) {
    self = operands[0];
    if (values) *values = operands.back();
    at.indices.assign(operands.begin() + 1, operands.begin() + 1 + n);
    return;
  }
  for (size_t i = 0; i < n; ++i)
    at.indices[i] =
        checked_indices(op, index_of(op, at.indices[i], self), bounds[i].dim, bounds[i].lowest, bounds[i].size);
}

// aten's operators.

/// The position of the only index, if it is a mask of fitting shape.
std::optional<size_t> only_mask(const at::Tensor& self, const c10::List<std::optional<at::Tensor>>& indices) {
  std::optional<size_t> found;
  for (size_t i = 0; i < indices.size(); ++i) {
    const std::optional<at::Tensor> index = indices.get(i);
    if (!index || !index->defined()) continue;
    if (found || index->scalar_type() != at::kBool) return std::nullopt;
    const auto n_dims = static_cast<int64_t>(i) + index->dim();
    if (n_dims > self.dim() || self.sizes().slice(i, index->dim()) != index->sizes()) return std::nullopt;
    found = i;
  }
  return found;
}

at::Tensor index(const at::Tensor& self, const c10::List<std::optional<at::Tensor>>& indices) {
  constexpr const char* kOp = "aten::index.Tensor";
  if (const auto mask = only_mask(self, indices))
    if (auto selected = select_locally(self, index_operand(kOp, *indices.get(*mask), spec_of(self)->mesh()),
                                       static_cast<int64_t>(*mask)))
      return *selected;
  const Indexed at = indexed(kOp, self, indices);
  return at.dims.empty() ? self.clone() : look_up(self, at);
}

/// The only index as a mask that broadcasts with `self`, if one number is written. Such a write needs no positions, so nothing is sent for them.
std::optional<at::Tensor> filled_mask(const char* op, const at::Tensor& self,
                                      const c10::List<std::optional<at::Tensor>>& indices, const at::Tensor& values,
                                      bool accumulate) {
  if (accumulate || values.dim() > 0 || values.scalar_type() != self.scalar_type()) return std::nullopt;
  const auto found = only_mask(self, indices);
  if (!found) return std::nullopt;
  const at::Tensor mask = index_operand(op, *indices.get(*found), spec_of(self)->mesh());
  Dims sizes(*found, 1);
  sizes.append(mask.sizes().begin(), mask.sizes().end());
  sizes.resize(self.dim(), 1);
  return mask.view(sizes);
}

/// `values` as an operand of put(). Throws: torch's errors for dtypes and shapes that do not fit.
at::Tensor checked_values(const at::Tensor& self, const Indexed& at, const at::Tensor& values) {
  SW_CHECK_INDEX(values.scalar_type() == self.scalar_type(),
                 "[aten::index_put] Index put requires the source and destination dtypes match, got {} for the "
                 "destination and {} for the source.",
                 c10::toString(self.scalar_type()), c10::toString(values.scalar_type()));
  const auto sizes = at.sizes_of(self);
  SW_CHECK(at::is_expandable_to(values.sizes(), sizes),
           "[aten::index_put] shape mismatch: value tensor of shape [{}] cannot be broadcast to indexing result of "
           "shape [{}]",
           fmt::join(values.sizes(), ", "), fmt::join(sizes, ", "));
  return values;
}

at::Tensor& put_in_place(at::Tensor& self, const c10::List<std::optional<at::Tensor>>& indices,
                         const at::Tensor& values, bool accumulate) {
  constexpr const char* kOp = "aten::index_put_";
  if (const auto mask = filled_mask(kOp, self, indices, values, accumulate)) return self.masked_fill_(*mask, values);
  const Indexed at = indexed(kOp, self, indices);
  if (at.dims.empty()) return accumulate ? self.add_(values) : self.copy_(values);
  put_(self, at, checked_values(self, at, values), accumulate);
  return self;
}

at::Tensor& put_unsafe_in_place(at::Tensor& self, const c10::List<std::optional<at::Tensor>>& indices,
                                const at::Tensor& values, bool accumulate, bool /*unsafe*/) {
  return put_in_place(self, indices, values, accumulate);
}

at::Tensor index_put(const at::Tensor& self, const c10::List<std::optional<at::Tensor>>& indices,
                     const at::Tensor& values, bool accumulate) {
  constexpr const char* kOp = "aten::index_put";
  if (const auto mask = filled_mask(kOp, self, indices, values, accumulate)) return self.masked_fill(*mask, values);
  const Indexed at = indexed(kOp, self, indices);
  if (at.dims.empty()) return accumulate ? self.add(values) : self.clone().copy_(values);
  return put(self, at, checked_values(self, at, values), accumulate);
}

/// Appends `mask`, which covers dims of `self` from `dim` on, as the indices where it is true.
void add_mask(const char* op, const at::Tensor& self, const at::Tensor& mask, Indexed& at, int64_t dim) {
  for (int64_t i = 0; i < mask.dim(); ++i)
    SW_CHECK_INDEX(
        mask.size(i) == self.size(dim + i),
        "[{}] The shape of the mask [{}] at index {} does not match the shape of the indexed tensor [{}] at index {}",
        op, fmt::join(mask.sizes(), ", "), i, fmt::join(self.sizes(), ", "), dim + i);
  const at::Tensor places = mask.nonzero();
  for (int64_t i = 0; i < mask.dim(); ++i) {
    at.indices.push_back(places.select(1, i));
    at.dims.push_back(dim + i);
  }
}

}  // namespace

std::vector<int64_t> Indexed::sizes_of(const at::Tensor& self) const {
  std::vector<int64_t> batch;
  for (const at::Tensor& index : indices) {
    bool fits = true;
    for (int64_t i = 1; i <= std::min<int64_t>(index.dim(), static_cast<int64_t>(batch.size())); ++i) {
      const int64_t a = index.size(-i), b = batch[batch.size() - i];
      fits &= a == b || a == 1 || b == 1;
    }
    std::string shapes;
    for (const at::Tensor& each : indices)
      shapes += fmt::format("{}[{}]", shapes.empty() ? "" : ", ", fmt::join(each.sizes(), ", "));
    TORCH_CHECK_INDEX(
        fits, "[aten::index] shape mismatch: indexing tensors could not be broadcast together with shapes ", shapes);
    batch = at::infer_size(batch, index.sizes());
  }
  std::vector<int64_t> sizes;
  for (size_t i = 0; const int64_t dim : ResultDims(self.dim(), dims, static_cast<int64_t>(batch.size())).of_self)
    sizes.push_back(dim < 0 ? batch[i++] : self.size(dim));
  return sizes;
}

Indexed indexed(const char* op, const at::Tensor& self, const c10::List<std::optional<at::Tensor>>& indices) {
  Indexed at;
  int64_t dim = 0, n_indexed = 0;
  bool has_mask = false;
  for (const auto& entry : indices) {
    const std::optional<at::Tensor> index = entry;
    const bool is_mask =
        index && index->defined() && (index->scalar_type() == at::kBool || index->scalar_type() == at::kByte);
    n_indexed += is_mask ? index->dim() : 1;
    has_mask |= is_mask;
  }
  SW_CHECK_INDEX(n_indexed <= self.dim(), "[{}] too many indices for tensor of dimension {} (got {}). Give {} at most.",
                 op, self.dim(), n_indexed, self.dim());
  for (size_t i = 0; i < indices.size(); ++i) {
    const std::optional<at::Tensor> given = indices.get(i);
    if (!given || !given->defined()) {
      ++dim;
      continue;
    }
    const auto type = given->scalar_type();
    SW_CHECK_INDEX(type == at::kLong || type == at::kInt || type == at::kBool || type == at::kByte,
                   "[{}] tensors used as indices must be long, int, byte or bool tensors; index {} is {}.", op, i,
                   c10::toString(type));
    if (type == at::kBool || type == at::kByte) {
      add_mask(op, self, index_operand(op, *given, spec_of(self)->mesh()), at, dim);
      dim += given->dim();
      continue;
    }
    at.indices.push_back(has_mask
                             ? checked_indices(op, index_of(op, *given, self), dim, -self.size(dim), self.size(dim))
                             : index_operand(op, *given, spec_of(self)->mesh()));
    at.dims.push_back(dim++);
    if (!has_mask) at.unchecked_of = op;
  }
  if (!at.dims.empty()) at.sizes_of(self);  // throws if the indices do not broadcast together
  return at;
}

at::Tensor look_up(const at::Tensor& self, Indexed at) {
  static const auto op = operator_of<decltype(index_window)>("shardwise::index");
  static const ByRule rule("shardwise::index");
  const std::vector<int64_t> firsts(at.dims.size()), sizes = sizes_at(self, at.dims);
  at::Tensor moved = self;
  move_checked(moved, at, nullptr, [&](const std::vector<at::Tensor>& indices) {
    return rule.layouts(self, indices, at.dims, firsts, sizes, at.from_end);
  });
  if (!moved.is_same(self)) return differentiable(self, at, moved);
  return op.call(self, at.indices, at.dims, firsts, sizes, at.from_end);
}

at::Tensor put(const at::Tensor& self, Indexed at, at::Tensor values, bool accumulate) {
  static const auto op = operator_of<decltype(compute_put)>("shardwise::put");
  static const ByRule rule("shardwise::put");
  const std::vector<int64_t> firsts(at.dims.size()), sizes = sizes_at(self, at.dims);
  at::Tensor moved = self;
  move_checked(moved, at, &values, [&](const std::vector<at::Tensor>& indices) {
    return rule.layouts(self, indices, values, at.dims, firsts, sizes, at.from_end, accumulate);
  });
  return op.call(moved, at.indices, values, at.dims, firsts, sizes, at.from_end, accumulate);
}

void put_(at::Tensor self, Indexed at, at::Tensor values, bool accumulate) {
  if (const Layout& layout = spec_of(self)->layout();
      !layout.has_one_box_each() || (layout.has_terms() && !accumulate)) {
    self.copy_(put(self, std::move(at), std::move(values), accumulate));
    return;
  }
  static const auto op = operator_of<decltype(compute_put_)>("shardwise::put_");
  static const ByRule rule("shardwise::put_");
  const std::vector<int64_t> firsts(at.dims.size()), sizes = sizes_at(self, at.dims);
  move_checked(self, at, &values, [&](const std::vector<at::Tensor>& indices) {
    return rule.layouts(stand_in(spec_of(self)), indices, values, at.dims, firsts, sizes, at.from_end, accumulate);
  });
  op.call(self, at.indices, values, at.dims, firsts, sizes, at.from_end, accumulate);
}

void register_index(RuleTable& table) {
  define_operator(
      "index(Tensor self, Tensor[] indices, int[] dims, int[] firsts, int[] sizes, bool from_end) -> Tensor",
      {.compute = &index_window, .derivative = &differentiable_index, .traced = &index_window});
  define_operator(
      "put(Tensor self, Tensor[] indices, Tensor values, int[] dims, int[] firsts, int[] sizes, bool from_end, bool "
      "accumulate) -> Tensor",
      {.compute = &compute_put, .traced = &compute_put});
  define_operator(
      "put_(Tensor(a!) self, Tensor[] indices, Tensor values, int[] dims, int[] firsts, int[] sizes, bool from_end, "
      "bool accumulate) -> Tensor(a!)",
      {.compute = &compute_put_, .traced = &compute_put_});
  table.add("shardwise::index", Rule("index", describe_index).linear_in_first().localized(localize_index));
  table.add({"shardwise::put", "shardwise::put_"}, Rule("put", describe_put).localized(localize_index));
  table.keep_symbols({"shardwise::index", "shardwise::put", "shardwise::put_"});
  add_composition_with_plain_self<&index>("_unsafe_index.Tensor");
  add_composition_with_plain_self<&index>("index.Tensor");  // registered last, so that errors of both have this name
  add_with_plain_self<&index_put>("index_put");
  add_with_plain_self<&put_in_place>("index_put_");
  add_with_plain_self<&put_unsafe_in_place>("_index_put_impl_");
  add_with_plain_self<&index_put>("_unsafe_index_put");
}

}  // namespace shardwise
