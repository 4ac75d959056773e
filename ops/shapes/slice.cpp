// ops/shapes/slice.cpp: slices, and the operators composed of slices: select, split, unbind.
//
// A slice of a sharded dim keeps the chosen elements of each shard; nothing moves. Selecting an index of a sharded dim
// is a slice of one element, which is then broadcast along that mesh dim. Whole parts of a strided Shard, such as the queries in packed
// queries, keys and values, stay where they are, too.
#include "ops/families.h"
#include "ops/support/by_rule.h"
#include "ops/support/derivative.h"
#include "ops/support/dim_pieces.h"
#include "ops/support/kernels.h"
#include "placements/placement_list.h"
#include "runtime/api/dtensor.h"
#include "runtime/api/gradients.h"
#include "runtime/dispatch/view_call.h"
#include "runtime/dispatch/view_replay.h"
#include "runtime/rules/propagate.h"
#include "runtime/tensor/below_autograd.h"
#include "text/check.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/stack.h>
#include <c10/core/WrapDimMinimal.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>

namespace shardwise {
namespace {

/// start:end:step of one dim, as the user passed it. In a traced program these may be symbols.
struct Range {
  int64_t dim = 0;
  std::optional<c10::SymInt> start, end;
  c10::SymInt step = 1;
};

at::Tensor slice(const at::Tensor& self, const Range& range) {
  return self.slice_symint(range.dim, range.start, range.end, range.step);
}

/// The elements of a dim that a slice keeps. Pre: the dense operator accepts these arguments.
class Chosen {
 public:
  explicit Chosen(const OpCall& call) {
    const c10::IntArrayRef sizes = call.operands[0].sizes;
    dim_ = call.arg("dim").toInt();
    if (dim_ < 0) dim_ += static_cast<int64_t>(sizes.size());
    start_ = call.arg("start").isNone() ? 0 : call.arg("start").toInt();
    if (start_ < 0) start_ += sizes[dim_];
    start_ = std::clamp<int64_t>(start_, 0, sizes[dim_]);
    step_ = call.arg("step").toInt();
    length_ = call.outputs[0].sizes[dim_];
  }

  int64_t dim() const { return dim_; }
  int64_t start() const { return start_; }
  int64_t step() const { return step_; }
  int64_t length() const { return length_; }
  /// The number of kept elements before `index`.
  int64_t before(int64_t index) const {
    return index <= start_ ? 0 : std::min(length_, (index - start_ + step_ - 1) / step_);
  }
  int64_t index_of(int64_t nth) const { return start_ + nth * step_; }
  Interval image(Interval shard) const { return {before(shard.begin), before(shard.end)}; }

 private:
  int64_t dim_, start_, step_, length_;
};

/// The placements of the slice of a strided Shard if it keeps whole parts of the strided dim, so that nothing moves.
std::optional<Placements> kept_strided(const Spec& spec, const Chosen& chosen) {
  const Layout& layout = spec.layout();
  const auto dim = layout.joined_dim();
  if (dim != chosen.dim() || layout.splits(*dim)) return std::nullopt;
  Placements result = spec.placements().vec();
  Placement& strided = *std::ranges::find(result, *dim, &Placement::strided_dim);
  const int64_t size = spec.sizes()[*dim], factor = strided.split_factor(), part = size / factor;
  if (size == 0 || size % factor != 0 || chosen.step() != 1 || chosen.length() == 0 || chosen.length() % part != 0 ||
      chosen.start() % part != 0)
    return std::nullopt;
  strided = Placement::strided_shard(*dim, chosen.length() / part);
  return result;
}

std::optional<Propagation> place(const OpCall& call) {
  SpecPtr spec = call.operands[0].spec;
  const Chosen chosen(call);
  if (auto kept = kept_strided(*spec, chosen)) {
    Propagation result = placed(call, spec, std::move(*kept));
    result.joined = true;
    return result;
  }
  if (!spec->layout().has_one_box_each() && !spec->layout().enumerated())
    spec = spec->with_placements(without_boxes(spec->placements()));
  return placed(call, spec, spec->layout().resized(chosen.dim(), [&](int64_t index) { return chosen.before(index); }));
}

/// A selected dim is whole, and dropped.
void describe_select(const OpCall& call, Signature& signature) {
  Axes axes = signature.add_factors(call.operands[0].sizes);
  const int64_t dim = c10::maybe_wrap_dim(call.arg("dim").toInt(), static_cast<int64_t>(axes.size()));
  signature.factors[dim].is_whole = true;
  signature.inputs = {axes};
  axes.erase(axes.begin() + dim);
  signature.outputs = {axes};
}

/// The chosen elements of this rank's shard. If the shard is the whole dim, the arguments stay, and hold for dims of all sizes.
void localize(const LocalCall& local, std::vector<c10::IValue>& args) {
  const Chosen chosen(local.call);
  const Interval piece = local.inputs[0].interval(chosen.dim());
  const auto keep = [&](int64_t start, int64_t end) {
    args[local.call.op.arg_index("start")] = start;
    args[local.call.op.arg_index("end")] = end;
  };
  const SpecPtr& spec = local.call.operands[0].spec;
  if (kept_strided(*spec, chosen)) {
    const int64_t size = spec->sizes()[chosen.dim()];  // the rank has the same share of every part
    return keep(chosen.start() * piece.length() / size, (chosen.start() + chosen.length()) * piece.length() / size);
  }
  if (piece.length() == local.call.operands[0].sizes[chosen.dim()]) return;
  const Interval kept = chosen.image(piece);
  const int64_t start = kept.length() == 0 ? 0 : chosen.index_of(kept.begin) - piece.begin;
  keep(start, kept.length() == 0 ? 0 : start + (kept.length() - 1) * chosen.step() + 1);
}

const at::Tensor& first_defined(const variable_list& grads) {
  return *std::ranges::find_if(grads, [](const at::Tensor& grad) { return grad.defined(); });
}

/// The gradient of a base from gradients of slices of it: zeros with its layout, and each gradient in its slice. If the base is replicated and a
/// gradient is Partial(sum), the result is Partial(sum). `symbols`: those of the base. `fills`: the slices cover the base, and all
/// have a gradient.
at::Tensor spread(const variable_list& grads, const Spec& base, c10::SymIntArrayRef symbols,
                  c10::ArrayRef<Range> ranges, bool fills) {
  const at::Tensor& any = first_defined(grads);
  Placements placements = without_partial(base.placements());
  for (const at::Tensor& grad : grads) {
    if (!grad.defined()) continue;
    const SpecPtr& of_grad = spec_of(grad);
    for (size_t m = 0; m < placements.size(); ++m)
      if (placements[m].is_whole() && of_grad->placements()[m].terms() == Reduce::kSum)
        placements[m] = of_grad->placements()[m];
  }
  auto spec = Spec::intern(base.mesh(), base.sizes(), std::move(placements), row_major_strides(base.sizes()),
                           any.scalar_type());
  Shards pieces = new_pieces(*spec, symbols, any.device());
  if (!fills)
    for (const at::Tensor& piece : pieces) piece.zero_();
  at::Tensor whole = wrap(spec, std::move(pieces));
  for (size_t i = 0; i < grads.size(); ++i)
    if (grads[i].defined()) slice(whole, ranges[i]).copy_(grads[i]);
  return whole;
}

/// The derivative of parts of a base: slices, or single indices, which lack the dim. The parts are in order, and none overlap.
class PartsBackward {
 public:
  PartsBackward(const at::Tensor& base, const std::vector<at::Tensor>& parts, std::vector<Range> ranges)
      : base_(spec_of(base)),
        symbols_(symbols_of(base)),
        ranges_(std::move(ranges)),
        dim_(c10::maybe_wrap_dim(ranges_[0].dim, base.dim())) {
    are_indices_ = parts[0].dim() < base.dim();
    c10::SymInt n_covered = 0;
    for (const at::Tensor& part : parts) {
      parts_.push_back(spec_of(part));
      n_covered = n_covered + (are_indices_ ? c10::SymInt(1) : part.sym_size(dim_));
    }
    are_all_ = n_covered == base.sym_size(dim_);
    has_numbers_ = !base.sym_size(dim_).is_symbolic() && std::ranges::none_of(ranges_, [](const Range& range) {
      return (range.start && range.start->is_symbolic()) || (range.end && range.end->is_symbolic());
    });
  }

  at::Tensor operator()(variable_list grads) const {
    const bool fills = are_all_ && std::ranges::all_of(grads, [](const at::Tensor& grad) { return grad.defined(); });
    if ((fills || has_numbers_) && lie_as_parts(grads)) return written(grads, fills);
    for (at::Tensor& grad : grads)
      if (grad.defined() && are_indices_) grad = grad.unsqueeze(dim_);
    return spread(grads, *base_, symbols_, ranges_, fills);
  }

 private:
  /// True if each rank has the elements of the gradients that its piece of the result needs.
  bool lie_as_parts(const variable_list& grads) const {
    const Layout& layout = base_->layout();
    if (c10::GradMode::is_enabled() || ranges_[0].step != 1 || !layout.has_one_box_each() || layout.has_terms() ||
        (are_indices_ && layout.n_parts(dim_) > 1))
      return false;
    for (size_t i = 0; i < grads.size(); ++i) {
      if (!grads[i].defined()) continue;
      const auto* impl = maybe_dtensor(grads[i]);
      if (!impl || impl->holds_subclass() || has_tangent(grads[i]) || !(impl->spec()->layout() == parts_[i]->layout()))
        return false;
    }
    return true;
  }

  at::Tensor written(const variable_list& grads, bool fills) const {
    const at::Tensor& any = first_defined(grads);
    auto spec = Spec::intern(base_->mesh(), base_->layout(), row_major_strides(base_->sizes()), any.scalar_type());
    const BelowAutograd guard;
    Shards pieces = new_pieces(*spec, symbols_, any.device());
    for (size_t i = 0; i < pieces.size(); ++i)
      fills ? join(grads, pieces[i]) : write(grads, spec->boxes()[i].interval(dim_), pieces[i]);
    return wrap(std::move(spec), std::move(pieces));
  }

  /// This rank's pieces of the gradients one after the other, as its piece of the result.
  void join(const variable_list& grads, at::Tensor& piece) const {
    std::vector<at::Tensor> values;
    for (const at::Tensor& grad : grads) values.push_back(maybe_dtensor(grad)->shards()[0]);
    are_indices_ ? at::stack_out(piece, values, dim_) : at::cat_out(piece, values, dim_);
  }

  /// The same with zeros where there is no gradient. `own`: the indices of the dim that the piece has.
  void write(const variable_list& grads, const Interval& own, const at::Tensor& piece) const {
    const auto clear = [&](int64_t begin, int64_t end) {
      if (begin < end) piece.narrow(dim_, begin - own.begin, end - begin).zero_();
    };
    int64_t done = own.begin;
    for (size_t i = 0; i < grads.size(); ++i) {
      const Interval part = common(own, i);
      if (!grads[i].defined() || part.length() <= 0) continue;
      const at::Tensor& values = maybe_dtensor(grads[i])->shards()[0];
      clear(done, part.begin);
      piece.narrow(dim_, part.begin - own.begin, part.length()).copy_(are_indices_ ? values.unsqueeze(dim_) : values);
      done = part.end;
    }
    clear(done, own.end);
  }

  /// The indices of the dim that part `i` and this rank's piece of the base have.
  Interval common(const Interval& own, size_t i) const {
    const int64_t size = base_->sizes()[dim_];
    const auto from_begin = [&](const c10::SymInt& given) {
      const int64_t index = given.expect_int();
      return std::clamp<int64_t>(index < 0 ? index + size : index, 0, size);
    };
    return {std::max(own.begin, from_begin(ranges_[i].start.value_or(0))),
            std::min(own.end, from_begin(ranges_[i].end.value_or(size)))};
  }

  SpecPtr base_;
  std::vector<c10::SymInt> symbols_;  // of the base
  std::vector<Range> ranges_;
  int64_t dim_;
  bool are_indices_ = false;
  bool are_all_ = false;     // the parts cover the base
  bool has_numbers_ = true;  // for the ends of the parts, and of the base
  std::vector<SpecPtr> parts_;
};

/// One index of a dim, without the dim.
at::Tensor index_in(const at::Tensor& self, const Range& range) { return self.select_symint(range.dim, *range.start); }

Range range_of_index(const at::Tensor& self, int64_t of_dim, const c10::SymInt& index) {
  TORCH_CHECK_INDEX(self.dim() > 0, "[aten::select] a tensor of 0 dims has no index to select. Use the tensor itself.");
  const int64_t dim = c10::maybe_wrap_dim(of_dim, self.dim());
  const c10::IntArrayRef sizes = spec_of(self)->sizes();
  const auto known = index.maybe_as_int();
  SW_CHECK_INDEX(
      !known || (-sizes[dim] <= *known && *known < sizes[dim]),
      "[aten::select] index {} is out of range for dim {} of a tensor of shape [{}]. Use an index in [{}, {}).", *known,
      of_dim, fmt::join(sizes, ", "), -sizes[dim], sizes[dim]);
  const c10::SymInt first = index < 0 ? index + self.sym_size(dim) : index;
  return {dim, first, first + 1};
}

/// Marks views as torch does for an operator that returns several of them: under autograd none may be written to in place. So a compiled program may
/// return several without telling autograd that they share memory.
std::vector<at::Tensor> as_one_of_several(std::vector<at::Tensor> views) {
  if (c10::GradMode::is_enabled())
    for (const at::Tensor& view : views)
      if (auto* meta = torch::autograd::impl::get_view_autograd_meta(view); meta && meta->has_bw_view()) {
        meta->set_creation_meta(torch::autograd::CreationMeta::MULTI_OUTPUT_NODE);
        if (auto* impl = maybe_dtensor(view); impl && is_traced(*impl)) hide_memory(*impl);
      }
  return views;
}

std::vector<Range> ranges_by_sizes(const at::Tensor& self, c10::SymIntArrayRef sizes, int64_t dim) {
  const auto numbers = [&] { return c10::fmap(sizes, [](const c10::SymInt& size) { return size.expect_int(); }); };
  c10::SymInt total = 0;
  for (const c10::SymInt& size : sizes) total = total + size;
  SW_CHECK_VALUE(total == self.sym_size(dim) && std::ranges::all_of(sizes, [](const auto& size) { return size >= 0; }),
                 "[aten::split_with_sizes] sizes [{}] add up to {}, but dim {} has {} elements. Make them add up to "
                 "that number, none below 0.",
                 fmt::join(numbers(), ", "), total.expect_int(), dim, fixed_size(self, dim));
  std::vector<Range> ranges;
  c10::SymInt begin = 0;
  for (const c10::SymInt& size : sizes) {
    ranges.push_back({dim, begin, begin + size});
    begin = begin + size;
  }
  return ranges;
}

std::vector<Range> ranges_evenly(const at::Tensor& self, int64_t size, int64_t dim) {
  const int64_t total = fixed_size(self, dim);
  SW_CHECK_VALUE(size > 0 || (size == 0 && total == 0),
                 "[aten::split] split size {} does not divide dim {} of {} elements. Use a size above 0.", size, dim,
                 total);
  std::vector<c10::SymInt> sizes;
  for (int64_t begin = 0; begin < total; begin += size) sizes.emplace_back(std::min(size, total - begin));
  if (sizes.empty()) sizes.emplace_back(0);  // torch gives one empty part
  return ranges_by_sizes(self, sizes, dim);
}

std::vector<Range> ranges_of_indices(const at::Tensor& self, int64_t dim) {
  std::vector<Range> ranges;
  const int64_t n = fixed_size(self, dim);
  for (int64_t index = 0; index < n; ++index) ranges.push_back(range_of_index(self, dim, index));
  return ranges;
}

using PartOf = at::Tensor (*)(const at::Tensor& self, const Range& range);

std::vector<at::Tensor> parts_in(const at::Tensor& self, const std::vector<Range>& ranges, PartOf part_of) {
  return c10::fmap(ranges, [&](const Range& range) { return part_of(self, range); });
}

/// parts_in() with one derivative for all parts. torch's formulas know the base's sizes, not its layout.
std::vector<at::Tensor> differentiable_parts(const at::Tensor& self, std::vector<Range> ranges, PartOf part_of,
                                             const char* name) {
  std::vector<at::Tensor> parts;
  {
    ViewReplay replay;
    at::AutoDispatchBelowAutograd guard;  // views are still noted
    parts = parts_in(self, ranges, part_of);
    for (const at::Tensor& part : parts) ViewReplay::keep_shape(self, part);
  }
  if (records(self) && !parts.empty())
    with_derivative_of_all(self, parts, name, PartsBackward(self, parts, std::move(ranges)));
  return parts;
}

// The kernels of aten's operators, below autograd and above.

at::Tensor select(const at::Tensor& self, int64_t dim, int64_t index) {
  static const ByRule whole("aten::select", "int");
  const Range range = range_of_index(self, dim, index);
  const Layout& layout = spec_of(self)->layout();
  const bool is_whole = layout.has_one_box_each() && layout.n_parts(range.dim) == 1;
  return is_whole && !maybe_dtensor(self)->holds_subclass() ? whole(self, range.dim, index)
                                                            : slice(self, range).squeeze(range.dim);
}
std::vector<at::Tensor> split(const at::Tensor& self, int64_t size, int64_t dim) {
  return parts_in(self, ranges_evenly(self, size, dim), &slice);
}
std::vector<at::Tensor> split_with_sizes(const at::Tensor& self, c10::SymIntArrayRef sizes, int64_t dim) {
  return parts_in(self, ranges_by_sizes(self, sizes, dim), &slice);
}
std::vector<at::Tensor> unbind(const at::Tensor& self, int64_t dim) {
  return parts_in(self, ranges_of_indices(self, dim), &index_in);
}

at::Tensor differentiable_slice(const at::Tensor& self, int64_t dim, std::optional<c10::SymInt> start,
                                std::optional<c10::SymInt> end, c10::SymInt step) {
  return differentiable_parts(self, {{dim, std::move(start), std::move(end), std::move(step)}}, &slice,
                              "SliceBackward")[0];
}
at::Tensor differentiable_select(const at::Tensor& self, int64_t dim, c10::SymInt index) {
  return differentiable_parts(self, {range_of_index(self, dim, index)}, &index_in, "SelectBackward")[0];
}
std::vector<at::Tensor> differentiable_split(const at::Tensor& self, int64_t size, int64_t dim) {
  return as_one_of_several(differentiable_parts(self, ranges_evenly(self, size, dim), &slice, "SplitBackward"));
}
std::vector<at::Tensor> differentiable_split_with_sizes(const at::Tensor& self, c10::SymIntArrayRef sizes,
                                                        int64_t dim) {
  return as_one_of_several(
      differentiable_parts(self, ranges_by_sizes(self, sizes, dim), &slice, "SplitWithSizesBackward"));
}
std::vector<at::Tensor> differentiable_unbind(const at::Tensor& self, int64_t dim) {
  return as_one_of_several(differentiable_parts(self, ranges_of_indices(self, dim), &index_in, "UnbindBackward"));
}

}  // namespace

void register_slices(RuleTable& table) {
  table.add("aten::slice.Tensor", Rule::placed("slice", place).takes_strided().localized(localize));
  table.add("aten::select.int", Rule("select", describe_select).linear(Linearity::kPass));
  table.keep_symbols(
      {"aten::slice.Tensor", "aten::select.int", "aten::split.Tensor", "aten::split_with_sizes", "aten::unbind.int"});
  auto& above = aten_autograd_kernels();
  above.impl("slice.Tensor", &differentiable_slice);
  above.impl("select.int", &differentiable_select);
  above.impl("split.Tensor", &differentiable_split);
  above.impl("split_with_sizes", &differentiable_split_with_sizes);
  above.impl("unbind.int", &differentiable_unbind);
  auto& below = aten_kernels();
  below.impl("select.int", &select);
  // torch's unsafe_ forms share memory, too, but autograd does not treat them as views: the caller promises not to write to overlapping parts.
  for (const char* op : {"split.Tensor", "unsafe_split.Tensor"}) below.impl(op, &split);
  for (const char* op : {"split_with_sizes", "unsafe_split_with_sizes"}) below.impl(op, &split_with_sizes);
  below.impl("unbind.int", &unbind);
}

}  // namespace shardwise
