// ops/shapes/slice.cpp: slices, and the operators composed of slices: select, split, unbind.
//
// A slice of a sharded dim keeps the chosen elements of each shard; nothing moves. Selecting an index of a sharded dim
// is a slice of one element, which is then broadcast along that mesh dim.
#include "ops/families.h"
#include "ops/support/derivative.h"
#include "ops/support/kernels.h"
#include "placements/placement_list.h"
#include "runtime/api/dtensor.h"
#include "runtime/dispatch/view_call.h"
#include "runtime/dispatch/view_replay.h"
#include "runtime/rules/propagate.h"
#include "text/check.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>

namespace shardwise {
namespace {

/// start:end:step of one dim, as the user passed it.
struct Range {
  int64_t dim = 0;
  std::optional<int64_t> start, end;
  int64_t step = 1;
};

at::Tensor slice(const at::Tensor& self, const Range& range) {
  return self.slice(range.dim, range.start, range.end, range.step);
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
  int64_t step() const { return step_; }
  /// The number of kept elements before `index`.
  int64_t before(int64_t index) const {
    return index <= start_ ? 0 : std::min(length_, (index - start_ + step_ - 1) / step_);
  }
  int64_t index_of(int64_t nth) const { return start_ + nth * step_; }
  Interval image(Interval shard) const { return {before(shard.begin), before(shard.end)}; }

 private:
  int64_t dim_, start_, step_, length_;
};

std::optional<Propagation> place(const OpCall& call) {
  const SpecPtr& spec = call.operands[0].spec;
  const Chosen chosen(call);
  return placed(call, spec, spec->layout().resized(chosen.dim(), [&](int64_t index) { return chosen.before(index); }));
}

/// The chosen elements of this rank's shard.
void localize(const LocalCall& local, std::vector<c10::IValue>& args) {
  const Chosen chosen(local.call);
  const Interval piece = local.inputs[0].interval(chosen.dim());
  const Interval kept = chosen.image(piece);
  const int64_t start = kept.length() == 0 ? 0 : chosen.index_of(kept.begin) - piece.begin;
  args[local.call.op.arg_index("start")] = start;
  args[local.call.op.arg_index("end")] = kept.length() == 0 ? 0 : start + (kept.length() - 1) * chosen.step() + 1;
}

/// Zeros with the base's layout, and `grad` in the slice. If the base is replicated and the gradient is Partial(sum), the result is Partial(sum).
at::Tensor spread(const at::Tensor& grad, const Spec& base, const Range& range) {
  Placements placements = without_partial(base.placements());
  for (size_t m = 0; m < placements.size(); ++m) {
    const Placement& of_grad = spec_of(grad)->placements()[m];
    if (placements[m].is_whole() && of_grad.terms() == Reduce::kSum) placements[m] = of_grad;
  }
  auto spec = Spec::intern(base.mesh(), base.sizes(), std::move(placements), row_major_strides(base.sizes()),
                           grad.scalar_type());
  Shards pieces;
  for (const Box& box : spec->boxes())
    pieces.push_back(at::zeros(box.sizes, at::TensorOptions().dtype(spec->dtype()).device(grad.device())));
  at::Tensor whole = wrap(spec, std::move(pieces));
  slice(whole, range).copy_(grad);
  return whole;
}

/// torch's derivative formula knows the base's sizes, not its layout.
at::Tensor differentiable_slice(const at::Tensor& self, int64_t dim, std::optional<int64_t> start,
                                std::optional<int64_t> end, int64_t step) {
  const Range range{dim, start, end, step};
  ViewReplay replay;
  at::Tensor result = [&] {
    at::AutoDispatchBelowAutograd guard;  // views are still noted
    return slice(self, range);
  }();
  return with_derivative(
      self, result, {}, "SliceBackward",
      [base = spec_of(self), range](const at::Tensor& grad, const auto&) { return spread(grad, *base, range); });
}

at::Tensor select_index(const at::Tensor& self, int64_t dim, int64_t index) {
  TORCH_CHECK_INDEX(self.dim() > 0, "[aten::select] a tensor of 0 dims has no index to select. Use the tensor itself.");
  const int64_t size = self.size(dim);
  SW_CHECK_INDEX(
      -size <= index && index < size,
      "[aten::select] index {} is out of range for dim {} of a tensor of shape [{}]. Use an index in [{}, {}).", index,
      dim, fmt::join(self.sizes(), ", "), -size, size);
  const int64_t first = index < 0 ? index + size : index;
  return self.slice(dim, first, first + 1).squeeze(dim);
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

std::vector<at::Tensor> parts_by_sizes(const at::Tensor& self, c10::IntArrayRef sizes, int64_t dim) {
  const int64_t total = c10::sum_integers(sizes);
  SW_CHECK_VALUE(total == self.size(dim) && std::ranges::all_of(sizes, [](int64_t size) { return size >= 0; }),
                 "[aten::split_with_sizes] sizes [{}] add up to {}, but dim {} has {} elements. Make them add up to "
                 "that number, none below 0.",
                 fmt::join(sizes, ", "), total, dim, self.size(dim));
  std::vector<at::Tensor> parts;
  int64_t begin = 0;
  for (int64_t size : sizes) {
    parts.push_back(self.slice(dim, begin, begin + size));
    begin += size;
  }
  return parts;
}

std::vector<at::Tensor> parts_evenly(const at::Tensor& self, int64_t size, int64_t dim) {
  const int64_t total = self.size(dim);
  SW_CHECK_VALUE(size > 0 || (size == 0 && total == 0),
                 "[aten::split] split size {} does not divide dim {} of {} elements. Use a size above 0.", size, dim,
                 total);
  std::vector<int64_t> sizes;
  for (int64_t begin = 0; begin < total; begin += size) sizes.push_back(std::min(size, total - begin));
  if (sizes.empty()) sizes.push_back(0);  // torch gives one empty part
  return parts_by_sizes(self, sizes, dim);
}

std::vector<at::Tensor> split_by_sizes(const at::Tensor& self, c10::IntArrayRef sizes, int64_t dim) {
  return as_one_of_several(parts_by_sizes(self, sizes, dim));
}

std::vector<at::Tensor> split_evenly(const at::Tensor& self, int64_t size, int64_t dim) {
  return as_one_of_several(parts_evenly(self, size, dim));
}

std::vector<at::Tensor> unbind_dim(const at::Tensor& self, int64_t dim) {
  std::vector<at::Tensor> parts;
  for (int64_t index = 0; index < self.size(dim); ++index) parts.push_back(select_index(self, dim, index));
  return as_one_of_several(std::move(parts));
}

}  // namespace

void register_slices(RuleTable& table) {
  table.add("aten::slice.Tensor", Rule::placed("slice", place).localized(localize));
  aten_autograd_kernels().impl("slice.Tensor", &differentiable_slice);
  add_composition("select.int", &select_index);
  add_composition("split.Tensor", &split_evenly);
  add_composition("split_with_sizes", &split_by_sizes);
  // torch's unsafe_ forms share memory, too, but autograd does not treat them as views: the caller promises not to write to overlapping parts.
  aten_kernels().impl("unsafe_split.Tensor", &parts_evenly);
  aten_kernels().impl("unsafe_split_with_sizes", &parts_by_sizes);
  add_composition("unbind.int", &unbind_dim);
}

}  // namespace shardwise
