// ops/indexing/gather.cpp: gather and scatter along a dim; our own operators take the offset of the local shard.
//
//   gather:  self sharded along dim    each rank looks up the indices in its shard: Partial(sum); index replicated
//            index sharded along dim   the result is sharded like index; self whole
//   scatter: self sharded along dim    each rank writes the indices in its shard; index and src replicated
//            index sharded along dim   added values give Partial(sum)
//   both:    self, index and src are sharded alike along other dims
#include "ops/families.h"
#include "ops/indexing/index.h"
#include "ops/indexing/index_grad.h"
#include "ops/indexing/index_operand.h"
#include "ops/indexing/window.h"
#include "ops/support/by_rule.h"
#include "ops/support/derivative.h"
#include "ops/support/dim_pieces.h"
#include "ops/support/kernels.h"
#include "ops/support/own_operator.h"
#include "ops/support/plain_self.h"
#include "runtime/api/dtensor.h"
#include "runtime/comm/tracing.h"
#include "runtime/tensor/below_autograd.h"

#include <ATen/ops/full.h>
#include <ATen/ops/gather.h>
#include <ATen/ops/take_along_dim_native.h>
#include <c10/core/WrapDimMinimal.h>

namespace shardwise {
namespace {

// Kernels of plain tensors.

at::Tensor& compute_scatter_(at::Tensor& self, const at::Tensor& index, const at::Tensor& src, int64_t dim,
                             int64_t first, int64_t size, std::string_view mode, bool include_self) {
  scatter_window(self, index, src, dim, first, size, mode, include_self);
  return self;
}

at::Tensor compute_scatter(const at::Tensor& self, const at::Tensor& index, const at::Tensor& src, int64_t dim,
                           int64_t first, int64_t size, std::string_view mode, bool include_self) {
  at::Tensor result = self.clone();
  return compute_scatter_(result, index, src, dim, first, size, mode, include_self);
}

// Calls of the operators.

at::Tensor call_gather(const at::Tensor& self, const at::Tensor& index, int64_t dim) {
  static const auto op = operator_of<decltype(gather_window)>("shardwise::gather");
  return op.call(self, index, dim, 0, spec_of(self)->sizes()[dim]);
}

at::Tensor call_scatter(const at::Tensor& self, const at::Tensor& index, const at::Tensor& src, int64_t dim,
                        std::string_view mode, bool include_self) {
  static const auto op = operator_of<decltype(compute_scatter)>("shardwise::scatter");
  return op.call(self, index, src, dim, 0, spec_of(self)->sizes()[dim], mode, include_self);
}

void call_scatter_(at::Tensor self, const at::Tensor& index, const at::Tensor& src, int64_t dim, std::string_view mode,
                   bool include_self) {
  static const auto op = operator_of<decltype(compute_scatter_)>("shardwise::scatter_");
  op.call(self, index, src, dim, 0, self.size(dim), mode, include_self);
}

// Rules of the operators.

/// self and index share the factors of dims of equal extent; other dims are whole. Along "dim" each has its own factor.
struct GatherAxes {
  Axes self, index;
  Axis window, position;

  GatherAxes(const OpCall& call, Signature& signature) {
    const c10::IntArrayRef of_self = call.operands[0].sizes, of_index = call.operands[1].sizes;
    const int64_t along = call.arg("dim").toInt();
    for (size_t dim = 0; dim < of_self.size(); ++dim) {
      const bool is_along = static_cast<int64_t>(dim) == along;
      const bool is_shared = !is_along && of_self[dim] == of_index[dim];
      self.push_back({signature.add_factor(of_self[dim])});
      index.push_back(is_shared ? self.back() : Axis{signature.add_factor(of_index[dim])});
      if (is_along) window = self.back(), position = index.back();
      if (!is_along && !is_shared)
        for (const Axis& axis : {self.back(), index.back()}) signature.factors[axis.factor].is_whole = true;
    }
  }
};

void describe_gather(const OpCall& call, Signature& signature) {
  const GatherAxes axes(call, signature);
  // One rank looks up the value, all others look up zeros.
  const bool is_bool = call.operands[0].spec->dtype() == c10::ScalarType::Bool;
  signature.factors[axes.window.factor].reduce = is_bool ? Reduce::kMax : Reduce::kSum;
  signature.inputs = {axes.self, axes.index};
  signature.outputs = {axes.index};
}

void describe_scatter(const OpCall& call, Signature& signature) {
  const GatherAxes axes(call, signature);
  const auto mode = call.arg("mode").toStringView();
  const bool adds = mode == "add" || (mode == "sum" && call.arg("include_self").toBool());
  signature.factors[axes.position.factor].reduce = adds ? std::optional(Reduce::kSum) : std::nullopt;
  signature.inputs = {axes.self, axes.index, call.operands[2].sizes.empty() ? Axes() : axes.index};
  signature.outputs = {axes.self};
  if (!adds) return;
  signature.additive = {0};
  signature.linearity = Linearity::kEach;
}

/// A window that is the whole dim has no size, so that a graph serves dims of all sizes.
void localize_gather(const LocalCall& local, std::vector<c10::IValue>& args) {
  if (local.inputs[0].sizes.empty()) return;
  const Interval window = local.inputs[0].interval(local.call.arg("dim").toInt());
  args[local.call.op.arg_index("first")] = window.begin;
  c10::IValue& size = args[local.call.op.arg_index("size")];
  if (window.length() == size.toInt()) size = kWholeDim;
}

// Derivatives: gather's is scatter, and the reverse.

/// `moved`: `self` or its values in another layout, which the lookup reads.
at::Tensor lookup(const at::Tensor& self, const at::Tensor& index, int64_t dim, const at::Tensor& moved) {
  const at::Tensor result = below_derivatives([&] { return call_gather(moved, index, dim); });
  carry_tangent(self, result, [&](const at::Tensor& tangent) { return lookup(tangent, index, dim, tangent); });
  return with_derivative(
      self, result, {index}, "GatherBackward",
      [source = spec_of(self), symbols = symbols_of(self), dim](const at::Tensor& grad, const variable_list& saved) {
        return gather_grad(grad, saved[0], source, symbols, dim);
      });
}

at::Tensor differentiable_gather(const at::Tensor& self, const at::Tensor& index, int64_t dim, int64_t /*first*/,
                                 int64_t /*size*/) {
  return lookup(self, index, dim, self);
}

// aten's operators. index may be smaller than self in other dims, and src larger than index: they are sliced.

at::Tensor sliced_to(at::Tensor tensor, c10::SymIntArrayRef sizes, int64_t except) {
  for (int64_t dim = 0; dim < tensor.dim() && dim < static_cast<int64_t>(sizes.size()); ++dim)
    if (dim != except && tensor.sym_size(dim) > sizes[dim]) tensor = tensor.slice_symint(dim, 0, sizes[dim]);
  return tensor;
}

/// True for the dtypes that torch accepts for positions; for others it throws.
bool is_integer(const at::Tensor& index) { return index.scalar_type() == at::kLong || index.scalar_type() == at::kInt; }

at::Tensor gather(const at::Tensor& self, int64_t dim, const at::Tensor& index, bool sparse_grad) {
  TORCH_CHECK_NOT_IMPLEMENTED(!sparse_grad || !self.requires_grad() || !c10::GradMode::is_enabled(),
                              "[aten::gather] sparse_grad=True asks for a sparse gradient, which a DTensor cannot "
                              "hold. Use sparse_grad=False: the gradient has this rank's part only.");
  const int64_t along = c10::maybe_wrap_dim(dim, self.dim());
  at::Tensor places = at_least_1d(index_operand("aten::gather", index, spec_of(self)->mesh()));
  if (index.sym_numel() == 0) places = places.to(at::kLong);
  const at::Tensor source = at_least_1d(self);
  const at::Tensor part = sliced_to(source, places.sym_sizes(), along);
  at::Tensor moved = part;
  if (is_integer(places)) {
    static const ByRule rule("shardwise::gather");
    const int64_t size = spec_of(source)->sizes()[along];
    const auto layouts = [&] { return rule.layouts(part, places, along, int64_t{0}, size); };
    std::vector<at::Tensor> operands{part, places};
    if (!move_in_range("aten::gather", operands, {{along, 0, size}}, /*fails_as_gather=*/true, layouts))
      operands[1] = checked_positions("aten::gather", places, along, size, source);
    moved = operands[0], places = operands[1];
  }
  const at::Tensor found = moved.is_same(part) ? call_gather(part, places, along) : lookup(part, places, along, moved);
  return index.dim() == 0 ? found.squeeze(0) : found;
}

/// A gather if the operands need no broadcasting. torch's composition reads their sizes. As there, indices count modulo the size.
at::Tensor take_along_dim(const at::Tensor& self, const at::Tensor& index, std::optional<int64_t> dim) {
  if (!dim || index.dim() != self.dim() || index.scalar_type() != at::kLong)
    return at::native::take_along_dim(self, index, dim);
  const int64_t along = c10::maybe_wrap_dim(*dim, self.dim());
  for (int64_t d = 0; d < self.dim(); ++d)
    if (d != along && self.sym_size(d) != index.sym_size(d)) return at::native::take_along_dim(self, index, dim);
  return at::gather(self, along, index.remainder(at::Scalar(self.sym_size(along))));
}

/// Throws: torch's error for the dtype, on all ranks. torch's kernel throws it only if there are elements, and some ranks may have none.
void check_mode(const at::Tensor& self, std::string_view mode, bool include_self) {
  if (mode.empty() || mode == "add" || is_tracing()) return;
  const BelowAutograd guard;
  const at::Tensor one = at::full({1}, 1, at::TensorOptions().dtype(self.scalar_type()));
  scatter_window(one, at::full({1}, 0, at::kLong), one.clone(), 0, 0, 1, mode, include_self);
}

/// Operands as shardwise::scatter takes them.
struct Scatter {
  int64_t dim;
  at::Tensor index, src;
  std::string_view mode = "";
  bool include_self = true;
  const char* op = "aten::scatter";
  bool fails_as_gather = true;

  Scatter(const at::Tensor& self, int64_t of_dim, const at::Tensor& of_index, const at::Tensor& of_src)
      : dim(c10::maybe_wrap_dim(of_dim, self.dim())),
        index(at_least_1d(index_operand("aten::scatter", of_index, spec_of(self)->mesh()))),
        src(of_src) {
    if (index.sym_numel() == 0) index = index.to(at::kLong);
  }

  Scatter by(std::string_view reduce, bool with_self = true) && {
    mode = reduce;
    include_self = with_self;
    return std::move(*this);
  }

  /// `self` (if it does not stay), the index and src as the scatter takes them; the index is checked. `stays`: `self` does not move. The scatter then
  /// needs index and src as `self` is sharded, and whole on the mesh dims that shard no other dim of `self`. So the index is gathered there first, and
  /// the check of what all ranks have sends nothing.
  std::vector<at::Tensor> operands(const at::Tensor& self, bool stays) const {
    std::vector<at::Tensor> result{self, index, src};
    if (!is_integer(index)) return result;
    const CommScope scope(op);
    const int64_t size = self.dim() == 0 ? 1 : spec_of(self)->sizes()[dim];
    const at::Tensor sized = self.dim() == 0 ? at::Tensor() : self;
    const auto in_range = [&](const auto& wanted) {
      if (!move_in_range(op, result, {{dim, 0, size}}, fails_as_gather, wanted))
        result[1] = fails_as_gather ? checked_positions(op, result[1], dim, size, sized)
                                    : checked_indices(op, result[1], dim, 0, size, sized);
      return result;
    };
    if (!stays) {
      static const ByRule rule("shardwise::scatter");
      const auto by_rule = [&] {
        return rule.layouts(self, index, src, dim, int64_t{0}, size, std::string(mode), include_self);
      };
      return in_range(by_rule);
    }
    Placements whole = spec_of(index)->placements().vec(), wanted = whole;
    for (size_t m = 0; m < whole.size(); ++m) {
      const Placement& of_self = spec_of(self)->placements()[m];
      if (of_self.is_whole() || of_self.split_dim() == dim)
        whole[m] = wanted[m] = Placement::replicate();
      else if (of_self.divides())
        wanted[m] = of_self;
    }
    result[1] = moved_to(index, std::move(whole));
    const auto as_wanted = [&](const at::Tensor& tensor) {
      return tensor.dim() == self.dim() ? spec_of(tensor)->with_placements(wanted) : nullptr;
    };
    const auto as_self = [&] { return c10::SmallVector<SpecPtr, 8>{nullptr, as_wanted(result[1]), as_wanted(src)}; };
    return in_range(as_self);
  }

  bool covers(const at::Tensor& self) const {
    return sliced_to(self, index.sym_sizes(), dim).sym_sizes() == self.sym_sizes();
  }

  void write(const at::Tensor& self) const {
    if (index.sym_numel() == 0) return;
    check_mode(self, mode, include_self);
    const at::Tensor part = sliced_to(at_least_1d(self), index.sym_sizes(), dim);
    const Layout& layout = spec_of(self)->layout();
    const bool stays = layout.has_one_box_each() && (!layout.has_terms() || mode == "add");
    const auto moved = operands(part, stays);
    if (stays)
      call_scatter_(part, moved[1], moved[2], dim, mode, include_self);
    else
      part.copy_(call_scatter(moved[0], moved[1], moved[2], dim, mode, include_self));
  }
  at::Tensor written(const at::Tensor& self) const {
    if (self.dim() > 0 && covers(self) && index.sym_numel() > 0) {
      check_mode(self, mode, include_self);
      const auto moved = operands(self, /*stays=*/false);
      return call_scatter(moved[0], moved[1], moved[2], dim, mode, include_self).contiguous();
    }
    const at::Tensor result = self.clone(at::MemoryFormat::Contiguous);
    write(result);
    return result;
  }
};

// The operands of aten's scatters: a src with a value per index, or one value for all, with self's dtype.

Scatter of_values(const at::Tensor& self, int64_t dim, const at::Tensor& index, const at::Tensor& src) {
  Scatter scatter(self, dim, index, src);
  scatter.src = sliced_to(at_least_1d(src), scatter.index.sym_sizes(), -1);
  return scatter;
}
Scatter of_value(const at::Tensor& self, int64_t dim, const at::Tensor& index, const at::Scalar& value) {
  return {self, dim, index, at::full({}, value, at::TensorOptions().dtype(self.scalar_type()).device(self.device()))};
}
Scatter values_by(const at::Tensor& self, int64_t dim, const at::Tensor& index, const at::Tensor& src,
                  std::string_view reduce) {
  return of_values(self, dim, index, src).by(reduce);
}
Scatter value_by(const at::Tensor& self, int64_t dim, const at::Tensor& index, const at::Scalar& value,
                 std::string_view reduce) {
  return of_value(self, dim, index, value).by(reduce);
}
Scatter values_added(const at::Tensor& self, int64_t dim, const at::Tensor& index, const at::Tensor& src) {
  return of_values(self, dim, index, src).by("add");
}
Scatter values_reduced(const at::Tensor& self, int64_t dim, const at::Tensor& index, const at::Tensor& src,
                       std::string_view reduce, bool include_self) {
  return of_values(self, dim, index, src).by(reduce, include_self);
}

}  // namespace

at::Tensor index_reduced(const at::Tensor& self, int64_t dim, const at::Tensor& index, const at::Tensor& src,
                         std::string_view reduce, bool include_self) {
  Scatter scatter = values_reduced(self, dim, index, src, reduce, include_self);
  scatter.op = "aten::index_reduce", scatter.fails_as_gather = false;
  return scatter.written(self);
}

at::Tensor gather_grad(const at::Tensor& grad, const at::Tensor& index, const SpecPtr& source,
                       c10::SymIntArrayRef symbols, int64_t dim) {
  std::vector<int64_t> of_source(grad.dim());
  for (int64_t d = 0; d < grad.dim(); ++d) of_source[d] = d == dim ? -1 : d;
  const at::Tensor result = below_derivatives([&] {
    const at::NoGradGuard no_grad;
    at::Tensor sum = zeros_for_grad(*source, grad, of_source, symbols);
    if (is_tracing())  // graphs cannot contain an operator of ours that writes to its operand
      sum = call_scatter(sum, index, grad, dim, "add", true);
    else
      call_scatter_(sum, index, grad, dim, "add", true);
    return in_pieces_of(*source, sum);
  });
  carry_tangent(grad, result,
                [&](const at::Tensor& tangent) { return gather_grad(tangent, index, source, symbols, dim); });
  return with_derivative(
      grad, result, {index}, "GatherBackwardBackward",
      [dim](const at::Tensor& outer, const variable_list& saved) { return lookup(outer, saved[0], dim, outer); });
}

void register_gather(RuleTable& table) {
  define_operator("gather(Tensor self, Tensor index, int dim, int first, int size) -> Tensor",
                  {.compute = &gather_window, .derivative = &differentiable_gather, .traced = &gather_window});
  define_operator(
      "scatter(Tensor self, Tensor index, Tensor src, int dim, int first, int size, str mode, bool include_self) -> "
      "Tensor",
      {.compute = &compute_scatter, .traced = &compute_scatter});
  define_operator(
      "scatter_(Tensor(a!) self, Tensor index, Tensor src, int dim, int first, int size, str mode, bool include_self) "
      "-> Tensor(a!)",
      {.compute = &compute_scatter_, .traced = &compute_scatter_});
  table.keep_symbols({"shardwise::gather", "shardwise::scatter", "aten::scatter.src", "aten::scatter.value",
                      "aten::scatter_add", "aten::scatter_reduce.two"});
  table.add("shardwise::gather", Rule("gather", describe_gather).linear_in_first().localized(localize_gather));
  const auto scatter = Rule("scatter", describe_scatter).localized(localize_gather);
  table.add({"shardwise::scatter", "shardwise::scatter_"}, scatter);
  add_composition_with_plain_self<&gather>("gather");
  add_composition("take_along_dim", &take_along_dim);
  add_writes<&of_values>("scatter.src", "scatter_.src");
  add_writes<&of_value>("scatter.value", "scatter_.value");
  add_writes<&values_by>("scatter.reduce", "scatter_.reduce");
  add_writes<&value_by>("scatter.value_reduce", "scatter_.value_reduce");
  add_writes<&values_added>("scatter_add", "scatter_add_");
  add_writes<&values_reduced>("scatter_reduce.two", "scatter_reduce_.two");
}

}  // namespace shardwise
