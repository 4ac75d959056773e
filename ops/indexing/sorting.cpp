// ops/indexing/sorting.cpp: sort and topk along a dim. sort moves the shard to another dim; for topk each rank sends
// its k candidates. Also derivatives of operators that select values: max, min, median, kthvalue, sort.
#include "ops/families.h"
#include "ops/indexing/index_grad.h"
#include "ops/indexing/index_operand.h"
#include "ops/support/by_rule.h"
#include "ops/support/derivative.h"
#include "ops/support/dim_pieces.h"
#include "ops/support/kernels.h"
#include "placements/placement_list.h"
#include "runtime/tensor/registrations.h"

#include <ATen/Functions.h>
#include <c10/core/WrapDimMinimal.h>

#include <algorithm>
#include <limits>
#include <tuple>
#include <type_traits>

namespace shardwise {
namespace {

/// Values and indices side by side along a new last dim, in words of the dtype `word`, so that one message carries both.
at::Tensor packed(const at::Tensor& values, const at::Tensor& indices, at::ScalarType word) {
  const auto words = [&](const at::Tensor& tensor) {
    return tensor.unsqueeze(-1).clone(at::MemoryFormat::Contiguous).view(word);
  };
  return at::cat({words(values), words(indices)}, -1);
}

/// The tensor of `dtype` in the `width` words that begin at `begin` in each entry.
at::Tensor unpacked(const at::Tensor& words, int64_t begin, int64_t width, at::ScalarType dtype) {
  return words.narrow(-1, begin, width).clone(at::MemoryFormat::Contiguous).view(dtype).squeeze(-1);  // at offset 0
}

/// The integer of the bytes of `value`, but no wider than a place in 32 bits: a unit in which both are copied.
at::ScalarType word_of(at::ScalarType value) {
  switch (c10::elementSize(value)) {
    case 1:
      return at::kByte;
    case 2:
      return at::kShort;
    default:
      return at::kInt;
  }
}

/// Gathers all ranks' packed candidates, each of `n_words`, in one exchange. Rank i has `n_candidates[i]` of them along the dim.
Shards gathered(const DimPieces& along, Shards own, const std::vector<int64_t>& n_candidates, int64_t n_all,
                int64_t n_words, at::ScalarType word) {
  const SpecPtr& spec = spec_of(along.tensor);
  Dims sizes(spec->sizes());
  sizes[along.dim] = n_all;
  sizes.push_back(n_words);
  const SpecPtr sharded =
      Spec::intern(spec->mesh(), sizes, along.with_lengths(n_candidates), row_major_strides(sizes), word);
  return maybe_dtensor(moved_to(wrap(sharded, std::move(own)), along.unsharded()))->shards();
}

std::tuple<at::Tensor, at::Tensor> topk(const at::Tensor& self, int64_t k, int64_t dim, bool is_largest,
                                        bool is_sorted) {
  static const ByRule whole("aten::topk");
  if (!is_sharded_along(self, dim)) return whole.tensors<2>(self, k, dim, is_largest, is_sorted);
  at::topk(at::empty(self.sizes(), self.options().device(at::kMeta)), k, dim);  // throws the dense operator's errors
  const DimPieces along = pieces_along(self, dim);
  std::vector<int64_t> n_candidates;
  int64_t n_all = 0;
  for (const Interval& interval : along.intervals) {
    n_candidates.push_back(std::min(k, interval.length()));
    n_all += n_candidates.back();
  }
  Shards values, indices;
  for (const at::Tensor& piece : maybe_dtensor(along.tensor)->shards()) {
    const auto [own, places] = at::topk(piece, n_candidates[along.own], along.dim, is_largest, is_sorted);
    values.push_back(own);
    indices.push_back(along.has_several() ? places + along.intervals[along.own].begin : places);
  }
  if (along.has_several()) {
    const at::ScalarType dtype = self.scalar_type();
    const at::ScalarType place = self.size(along.dim) <= std::numeric_limits<int32_t>::max() ? at::kInt : at::kLong;
    const at::ScalarType word = word_of(dtype);
    const auto width = [&](at::ScalarType each) {
      return static_cast<int64_t>(c10::elementSize(each) / c10::elementSize(word));
    };
    Shards own;
    for (size_t i = 0; i < values.size(); ++i) own.push_back(packed(values[i], indices[i].to(place), word));
    const Shards all = gathered(along, std::move(own), n_candidates, n_all, width(dtype) + width(place), word);
    for (size_t i = 0; i < values.size(); ++i) {
      const auto [best, places] =
          at::topk(unpacked(all[i], 0, width(dtype), dtype), k, along.dim, is_largest, is_sorted);
      values[i] = best;
      indices[i] = unpacked(all[i], width(dtype), width(place), place).gather(along.dim, places).to(at::kLong);
    }
  }
  return {along.wrapped(values, k, along.unsharded(), self.scalar_type()),
          along.wrapped(indices, k, along.unsharded(), at::kLong)};
}

/// max(), min() or topk(), the operator Op, with a gradient of self's layout if the dim is sharded. torch's formulas know only the sizes.
template <class Op, class... Args>
std::tuple<at::Tensor, at::Tensor> selection(c10::DispatchKeySet keys, const at::Tensor& self, Args... args) {
  constexpr bool has_k = std::is_same_v<Op, at::_ops::topk>;
  const int64_t dim = std::get<has_k ? 1 : 0>(std::tuple(args...));
  if (!is_sharded_along(self, dim)) return Op::redispatch(formula_keys(keys), self, args...);
  const auto [values, indices] = below_derivatives([&] { return Op::call(self, args...); });
  const bool is_reduced = values.dim() < self.dim();
  const int64_t along = c10::maybe_wrap_dim(dim, self.dim());
  const auto spread = [=](const at::Tensor& tensor) { return is_reduced ? tensor.unsqueeze(along) : tensor; };
  carry_tangent(self, values, [&](const at::Tensor& tangent) {
    const at::Tensor chosen = tangent.gather(along, spread(indices));
    return is_reduced ? chosen.squeeze(along) : chosen;
  });
  const auto derivative = [=, source = spec_of(self), symbols = symbols_of(self)](const at::Tensor& grad,
                                                                                  const auto& saved) {
    return gather_grad(spread(grad), index_operand("aten::gather", spread(saved[0]), source->mesh()), source, symbols,
                       along);
  };
  return {with_derivative(self, values, {indices}, "SelectionBackward", derivative), indices};
}

/// The gradient of a tensor of `sizes` from `values`, the gradient of its elements at `indices` along `dim`. It is laid out as `values`. torch's
/// formulas scatter into plain zeros, by an operator that checks the indices on all ranks, which is collective.
at::Tensor at_selected(const at::Tensor& values, int64_t dim, const at::Tensor& indices, c10::SymIntArrayRef sizes) {
  if (sizes.empty()) return values;  // the one value
  const MeshPtr& mesh = spec_of(values)->mesh();
  const int64_t along = c10::maybe_wrap_dim(dim, values.dim());
  Placements placements = replicated_where(spec_of(values)->placements(), [&](const Placement& each) {
    return each.split_dim() < 0 || each.split_dim() == along;
  });
  const auto known = c10::asIntArrayRefSlowOpt(sizes);
  const Dims numbers = known ? Dims(*known) : symbol_hooks().values(sizes);
  const auto source =
      Spec::intern(mesh, numbers, std::move(placements), row_major_strides(numbers), values.scalar_type());
  const at::Tensor places = index_operand("aten::value_selecting_reduction_backward", indices, mesh);
  return gather_grad(values, places, source, known ? c10::SymIntArrayRef() : sizes, along);
}

at::Tensor value_selecting_reduction_backward(const at::Tensor& grad, int64_t dim, const at::Tensor& indices,
                                              c10::SymIntArrayRef sizes, bool keepdim) {
  const bool is_reduced = !keepdim && !sizes.empty();
  return is_reduced ? at_selected(grad.unsqueeze(dim), dim, indices.unsqueeze(dim), sizes)
                    : at_selected(grad, dim, indices, sizes);
}

/// A value may be the running extreme at several positions.
at::Tensor cummaxmin_backward(const at::Tensor& grad, const at::Tensor& /*input*/, const at::Tensor& indices,
                              int64_t dim) {
  return at_selected(grad, dim, indices, grad.sym_sizes());
}

}  // namespace

void register_sorting(RuleTable& table) {
  table.add({"aten::sort", "aten::sort.stable"}, pointwise().whole("dim").sampled());
  table.add("aten::topk", pointwise().whole("dim"));  // along a sharded dim the kernel combines the shards' candidates
  table.keep_symbols({"aten::sort", "aten::sort.stable", "aten::topk"});
  aten_kernels().impl_in_memory("topk", &topk);
  aten_autograd_kernels().impl("topk", &selection<at::_ops::topk, int64_t, int64_t, bool, bool>);
  aten_autograd_kernels().impl("max.dim", &selection<at::_ops::max_dim, int64_t, bool>);
  aten_autograd_kernels().impl("min.dim", &selection<at::_ops::min_dim, int64_t, bool>);
  add_composition("cummaxmin_backward", &cummaxmin_backward);
  add_composition("value_selecting_reduction_backward", &value_selecting_reduction_backward);
}

}  // namespace shardwise
