// ops/shapes/views.cpp: reshaped and expanded views, and other memory for a tensor. Any Partial passes. Slices are in slice.cpp,
// permutations in permute.cpp.
#include "ops/families.h"
#include "ops/support/kernels.h"
#include "ops/support/own_operator.h"
#include "placements/placement_list.h"
#include "runtime/api/dtensor.h"
#include "runtime/dispatch/copied_view.h"
#include "runtime/dispatch/view_replay.h"
#include "runtime/redistribute/execute.h"
#include "runtime/rules/propagate.h"
#include "runtime/tensor/view_begin.h"
#include "text/check.h"

#include <c10/core/WrapDimMinimal.h>
#include <c10/util/accumulate.h>

#include <algorithm>
#include <numeric>

namespace shardwise {
namespace {

/// Pairs the dims of a tensor with those of the reshaped tensor.
///
/// [2, 6, 4] -> [2, 24]   dim 0 stays; a row of 4 becomes 4 consecutive elements: scale 1 in the input, 4 in the output
/// [24] -> [6, 4]         scale 4 in the input, 1 in the output, so that shards end between rows
///
/// Only the first dim of a group may be sharded.
class Regrouping {
 public:
  Regrouping(c10::IntArrayRef from, c10::IntArrayRef to, Signature& signature)
      : from_(from), to_(to), signature_(signature), before_(from.size()), after_(to.size()) {
    while (i_ < from.size() && j_ < to.size()) {
      if (from[i_] == to[j_])
        keep();
      else if (from[i_] == 1)
        ++i_;
      else if (to[j_] == 1)
        ++j_;
      else if (!regroup())
        break;  // an empty tensor, whose dims do not pair
    }
    signature.set({before_}, {after_});
  }

 private:
  void keep() {
    const int factor = signature_.add_factor(from_[i_]);
    before_[i_++].factor = factor;
    after_[j_++].factor = factor;
  }

  /// The shortest runs of dims from here on with equal products of extents.
  bool regroup() {
    const size_t first_before = i_, first_after = j_;
    int64_t n_before = from_[i_++], n_after = to_[j_++];
    while (n_before != n_after) {
      if (n_before < n_after ? i_ == from_.size() : j_ == to_.size()) return false;
      if (n_before < n_after)
        n_before *= from_[i_++];
      else
        n_after *= to_[j_++];
    }
    if (n_before == 0) return true;
    const int64_t row_before = n_before / from_[first_before], row_after = n_after / to_[first_after];
    const int64_t step = std::lcm(row_before, row_after);
    const int factor = signature_.add_factor(n_before / step);
    before_[first_before] = {factor, step / row_before};
    after_[first_after] = {factor, step / row_after};
    return true;
  }

  c10::IntArrayRef from_, to_;
  Signature& signature_;
  Axes before_, after_;
  size_t i_ = 0, j_ = 0;
};

/// A view with the same sizes accepts tensors in pieces as they are.
void describe_view(const OpCall& call, Signature& signature) {
  const c10::IntArrayRef from = call.operands[0].sizes, to = call.outputs[0].sizes;
  Regrouping(from, to, signature);
  signature.is_pointwise = from == to;
}

/// Dims [begin, end) of the sizes with more dims, which are one dim of the other sizes. All other dims are equal.
struct Merged {
  size_t begin = 0, end = 0;
};

/// The dims of `apart` that are one dim of `merged`; nothing if the sizes differ in another way, or if there are no elements.
std::optional<Merged> merged_dims(c10::IntArrayRef apart, c10::IntArrayRef merged) {
  if (merged.empty() || apart.size() <= merged.size() || c10::multiply_integers(apart) == 0) return std::nullopt;
  size_t begin = 0;
  while (begin + 1 < merged.size() && apart[begin] == merged[begin]) ++begin;
  const auto find = [&](size_t at) -> std::optional<Merged> {
    const size_t end = apart.size() - (merged.size() - at - 1);
    const bool fits =
        apart.slice(end) == merged.slice(at + 1) && c10::multiply_integers(apart.slice(at, end - at)) == merged[at];
    return fits ? std::optional(Merged{at, end}) : std::nullopt;
  };
  for (size_t at = begin + 1; at-- > 0;)
    if (const auto found = find(at)) return found;
  return std::nullopt;
}

/// A view that would give a rank more pieces moves instead. Plans and pictures list pieces, so many of them cost more than a move.
constexpr int64_t kMostPieces = 1024;

/// The view of `spec` with `sizes`, placed as `spec` except for mesh dim `mesh_dim`.
Propagation strided_view(const OpCall& call, size_t mesh_dim, const Merged& merged, const Placement& placement) {
  const Spec& spec = *call.operands[0].spec;
  const auto grows = static_cast<int64_t>(call.outputs[0].sizes.size()) - spec.dim();
  std::vector<Placement> placements = renumbered(
      spec.placements(), [&](int64_t dim) { return dim > static_cast<int64_t>(merged.begin) ? dim + grows : dim; });
  placements[mesh_dim] = placement;
  Propagation result = placed(call, call.operands[0].spec, std::move(placements));
  result.joined = spec.layout().joined_dim() || result.outputs[0]->layout().joined_dim();
  return result;
}

/// [4, 6] as Shard(1) -> [24] as _StridedShard(0, split_factor=4): nothing moves. Nothing for other views.
std::optional<Propagation> flattened(const OpCall& call) {
  const SpecPtr& spec = call.operands[0].spec;
  if (!spec || !spec->layout().has_one_box_each()) return std::nullopt;
  const auto merged = merged_dims(spec->sizes(), call.outputs[0].sizes);
  if (!merged) return std::nullopt;
  std::optional<size_t> mesh_dim;
  for (size_t m = 0; m < spec->placements().size(); ++m) {
    const int64_t dim = spec->placements()[m].split_dim();
    if (dim < static_cast<int64_t>(merged->begin) || dim >= static_cast<int64_t>(merged->end)) continue;
    if (mesh_dim || !spec->placements()[m].is_chunk()) return std::nullopt;
    mesh_dim = m;
  }
  if (!mesh_dim) return std::nullopt;
  const auto dim = static_cast<size_t>(spec->placements()[*mesh_dim].split_dim());
  const int64_t factor = c10::multiply_integers(spec->sizes().slice(merged->begin, dim - merged->begin));
  const int64_t row = c10::multiply_integers(spec->sizes().slice(dim + 1, merged->end - dim - 1));
  const bool is_even = spec->sizes()[dim] % spec->layout().grid().shape[*mesh_dim] == 0;
  // A dim of one index is dropped, not flattened: one rank has all of it.
  if (factor == 1 || spec->sizes()[dim] == 1 || factor > kMostPieces || (row > 1 && !is_even)) return std::nullopt;
  const auto begin = static_cast<int64_t>(merged->begin);
  const bool is_whole = spec->layout().grid().shape[*mesh_dim] == 1;
  return strided_view(call, *mesh_dim, *merged,
                      is_whole ? Placement::shard(begin) : Placement::strided_shard(begin, factor));
}

/// The inverse: [24] as _StridedShard(0, split_factor=4) -> [4, 6] as Shard(1).
std::optional<Propagation> unflattened(const OpCall& call) {
  const SpecPtr& spec = call.operands[0].spec;
  const auto strided_dim = spec ? spec->layout().joined_dim() : std::nullopt;
  const c10::IntArrayRef to = call.outputs[0].sizes;
  const auto merged = strided_dim ? merged_dims(to, spec->sizes()) : std::nullopt;
  if (!merged || static_cast<int64_t>(merged->begin) != *strided_dim || spec->layout().splits(*strided_dim))
    return std::nullopt;
  const auto placements = spec->placements();
  const size_t mesh_dim = std::ranges::find(placements, *strided_dim, &Placement::strided_dim) - placements.begin();
  int64_t factor = 1;
  size_t dim = merged->begin;
  while (dim < merged->end && factor < placements[mesh_dim].split_factor()) factor *= to[dim++];
  while (dim + 1 < merged->end && to[dim] == 1) ++dim;
  if (factor != placements[mesh_dim].split_factor() || dim == merged->end) return std::nullopt;
  const int64_t row = c10::multiply_integers(to.slice(dim + 1, merged->end - dim - 1));
  const bool is_even = to[dim] % spec->layout().grid().shape[mesh_dim] == 0;
  if (row > 1 && !is_even) return std::nullopt;
  return strided_view(call, mesh_dim, *merged, Placement::shard(static_cast<int64_t>(dim)));
}

void describe_expand(const OpCall& call, Signature& signature) {
  const c10::IntArrayRef from = call.operands[0].sizes, to = call.outputs[0].sizes;
  Axes result;
  for (size_t dim = 0; dim < to.size(); ++dim) {
    const bool is_kept = dim + from.size() >= to.size() && from[dim + from.size() - to.size()] == to[dim];
    result.push_back(is_kept ? Axis{signature.add_factor(to[dim])} : Axis{});
  }
  signature.set({broadcast_axes(from, to, result)}, {result});
  signature.is_pointwise = from == to;
}

/// A dtype of another element size changes the extent of the last dim: [3, 8] of 2 bytes are [3, 4] of 4 bytes.
void describe_view_as_dtype(const OpCall& call, Signature& signature) {
  const c10::IntArrayRef from = call.operands[0].sizes, to = call.outputs[0].sizes;
  Axes before, after;
  for (size_t dim = 0; dim < to.size(); ++dim) {
    const int64_t n = std::min(from[dim], to[dim]);
    const int factor = signature.add_factor(n);
    before.push_back({factor, n > 0 ? from[dim] / n : 1});
    after.push_back({factor, n > 0 ? to[dim] / n : 1});
  }
  signature.set({before}, {after});
  signature.is_pointwise = from == to;
  if (const SpecPtr& spec = call.operands[0].spec; spec && spec->dtype() == call.outputs[0].dtype)
    signature.linearity = Linearity::kPass;
}

/// Pre: the global tensor can be viewed as `dtype`. If a piece begins at an address where no element of `dtype` begins, its values are copied.
at::Tensor view_as_dtype(const at::Tensor& piece, at::ScalarType dtype) {
  const auto from = static_cast<int64_t>(piece.element_size()), to = static_cast<int64_t>(c10::elementSize(dtype));
  const auto is_fit = [&](int64_t n) { return n * from % to == 0; };
  bool fits = to <= from || is_fit(piece.storage_offset());
  for (int64_t dim = 0; to > from && dim < piece.dim() - 1; ++dim) fits &= is_fit(piece.stride(dim));
  if (from != to) fits &= piece.dim() > 0 && piece.stride(-1) == 1;
  return (fits ? piece : piece.clone(at::MemoryFormat::Contiguous)).view(dtype);
}

at::Tensor reshape_alias(const at::Tensor& self, c10::IntArrayRef sizes, c10::IntArrayRef) { return self.view(sizes); }

/// The elements that as_strided reads: [offset, end) in the memory of the global tensor.
struct Strided {
  c10::IntArrayRef sizes, strides;
  int64_t offset;

  int64_t end() const {
    int64_t last = offset;
    for (size_t dim = 0; dim < sizes.size(); ++dim) {
      if (sizes[dim] == 0) return offset;
      last += (sizes[dim] - 1) * strides[dim];
    }
    return last + 1;
  }
  /// True if all of these elements are in `tensor`, and the elements of `tensor` fill their memory.
  bool is_within(const at::Tensor& tensor) const {
    const int64_t begin = tensor.storage_offset();
    return tensor.is_non_overlapping_and_dense() && offset >= begin && end() <= begin + tensor.numel();
  }
};

/// as_strided() with an offset from the tensor's first element, because a piece begins elsewhere in its memory than the global tensor does.
at::Tensor strided_from_begin(const at::Tensor& self, c10::IntArrayRef sizes, c10::IntArrayRef strides,
                              int64_t offset) {
  return self.as_strided(sizes, strides, self.storage_offset() + offset);
}

/// True if each rank's piece is in memory as the global tensor is. False in a traced program: tracers follow no as_strided() of another view.
bool has_own_memory(const DTensorImpl& tensor) {
  return !tensor.view_link() && !is_traced(tensor) && leaves_in_place(*tensor.spec(), *tensor.spec()->replicated()) &&
         std::ranges::all_of(tensor.shards(), [&](const at::Tensor& piece) {
           return piece.sizes() == tensor.sizes() && piece.strides() == tensor.strides();
         });
}

/// A replica on the mesh of `like`.
SpecPtr replica(const Spec& like, c10::IntArrayRef sizes, c10::IntArrayRef strides) {
  return Spec::intern(like.mesh(), sizes, Placements(like.placements().size()), strides, like.dtype());
}

/// Pre: the tensor's memory has these elements. Gathers the tensor unless has_own_memory(): global strides do not tell which rank has an element.
at::Tensor view_of_memory(const at::Tensor& self, const Strided& strided) {
  const DTensorImpl& impl = *maybe_dtensor(self);
  const int64_t offset = strided.offset - self.storage_offset();
  const bool is_own = has_own_memory(impl);
  const at::Tensor whole = is_own ? self : redistribute(self, Placements(impl.spec()->placements().size()));
  Shards pieces;
  for (const at::Tensor& piece : maybe_dtensor(whole)->shards()) {
    const at::Tensor dense = is_own ? piece : piece.new_empty_strided(self.sizes(), self.strides()).copy_(piece);
    pieces.push_back(strided_from_begin(dense, strided.sizes, strided.strides, offset));
  }
  at::Tensor result = wrap_view("aten::as_strided", replica(*impl.spec(), strided.sizes, strided.strides),
                                std::move(pieces), origin_of(impl), offset);
  if (is_own) return result;
  static const OpInfo op(c10::Dispatcher::singleton().findSchemaOrThrow("shardwise::strided_from_begin", ""));
  maybe_dtensor(result)->set_view_link(std::make_shared<CopiedView>(
      CopiedView::Reason::kMoved, op, torch::jit::Stack{self, strided.sizes, strided.strides, offset}));
  return result;
}

/// The tensor, or the base that it is a view of, whose memory has these elements; undefined if neither has. After set_() a view has other memory than its
/// base.
at::Tensor memory_with(const at::Tensor& self, const Strided& strided) {
  if (strided.is_within(self)) return self;
  const at::Tensor base(self.is_view() ? self._base() : at::TensorBase());
  const auto* impl = maybe_dtensor(base);
  return impl && impl->memory() == maybe_dtensor(self)->memory() && strided.is_within(base) ? base : at::Tensor();
}

/// Like torch's as_strided(), it reads the memory that a view shares with its base, not only the view's elements.
at::Tensor as_strided(const at::Tensor& self, c10::IntArrayRef sizes, c10::IntArrayRef strides,
                      std::optional<int64_t> storage_offset) {
  const Strided strided{sizes, strides, storage_offset.value_or(self.storage_offset())};
  if (sizes == self.sizes() && strides == self.strides() && strided.offset == self.storage_offset())
    return self.alias();
  SW_CHECK(sizes.size() == strides.size() && strided.offset >= 0 &&
               std::ranges::all_of(strides, [](int64_t stride) { return stride >= 0; }),
           "[aten::as_strided] sizes [{}], strides [{}] and offset {} do not fit. Give as many strides as sizes, none "
           "of them negative.",
           fmt::join(sizes, ", "), fmt::join(strides, ", "), strided.offset);
  const at::Tensor memory = memory_with(self, strided);
  SW_CHECK_VALUE(memory.defined(),
                 "[aten::as_strided] elements [{}, {}) of memory are not all in the DTensor of shape [{}] and strides "
                 "[{}] that begins at {}: it does not hold the memory before, between and after its own elements. "
                 "Call as_strided on the tensor that it is a view of, or use slice, select and permute.",
                 strided.offset, strided.end(), fmt::join(self.sizes(), ", "), fmt::join(self.strides(), ", "),
                 self.storage_offset());
  return view_of_memory(memory, strided);
}

/// as_strided() with an offset from the first element of `self`. Its gradient goes to the tensor that has the memory.
at::Tensor strided_from(const at::Tensor& self, c10::IntArrayRef sizes, c10::IntArrayRef strides, int64_t offset) {
  const Strided strided{sizes, strides, self.storage_offset() + offset};
  const at::Tensor memory = memory_with(self, strided);
  return (memory.defined() ? memory : self).as_strided(sizes, strides, strided.offset);
}

/// The kernel of as_strided_.
const at::Tensor& change_strides(const at::Tensor& self, c10::IntArrayRef sizes, c10::IntArrayRef strides,
                                 std::optional<int64_t> storage_offset) {
  const int64_t offset = storage_offset.value_or(self.storage_offset()) - self.storage_offset();
  become(self, strided_from(self, sizes, strides, offset),
         [sizes = sizes.vec(), strides = strides.vec(), offset](const at::Tensor& same) {
           return strided_from(same, sizes, strides, offset);
         });
  return self;  // NOLINT(bugprone-return-const-ref-from-parameter): the signature is torch's
}

/// The kernel of resize_. The tensor keeps its memory, which grows if it must.
const at::Tensor& resize(const at::Tensor& self, c10::IntArrayRef sizes, std::optional<at::MemoryFormat> format) {
  const at::Tensor shape = at::empty(sizes, self.options().device(at::kMeta), format);
  if (sizes == self.sizes() && (!format || shape.strides() == self.strides()))
    return self;  // NOLINT(bugprone-return-const-ref-from-parameter): the signature is torch's
  const Strided strided{sizes, shape.strides(), self.storage_offset()};
  if (memory_with(self, strided).defined()) return change_strides(self, sizes, shape.strides(), std::nullopt);
  const DTensorImpl& impl = *maybe_dtensor(self);
  SW_CHECK_NOT_IMPLEMENTED(has_own_memory(impl),
                           "[aten::resize_] shape [{}] needs elements [{}, {}) of memory. This DTensor of layout {} "
                           "does not have them, and its memory, which is in pieces, does not grow. Copy it into "
                           "new_empty() of that shape.",
                           fmt::join(sizes, ", "), strided.offset, strided.end(), to_string(impl.spec()->placements()));
  const MemoryWrite write = impl.begin_write();
  Shards pieces = impl.shards();
  for (at::Tensor& piece : pieces) piece = piece.alias().resize_(sizes, format);
  become(self,
         wrap_view("aten::resize_", replica(*impl.spec(), sizes, shape.strides()), std::move(pieces), origin_of(impl)),
         [sizes = sizes.vec(), strides = shape.strides().vec()](const at::Tensor& same) {
           return strided_from(same, sizes, strides, 0);
         });
  return self;  // NOLINT(bugprone-return-const-ref-from-parameter)
}

const at::Tensor& resize_as(const at::Tensor& self, const at::Tensor& other, std::optional<at::MemoryFormat> format) {
  if (format == at::MemoryFormat::Preserve) format = other.suggest_memory_format();
  return self.resize_(other.sizes(), format);
}

/// The kernel of set_.source_Tensor: `self` has the memory of `source` from now on. Its views keep the memory that it had.
at::Tensor& set_memory(at::Tensor& self, const at::Tensor& source) {
  SW_CHECK_TYPE(is_dtensor(self) && is_dtensor(source) && self.scalar_type() == source.scalar_type(),
                "[aten::set_] gives a {} of {} the memory of a {} of {}. Give a DTensor the memory of a DTensor of the "
                "same dtype.",
                is_dtensor(self) ? "DTensor" : "torch.Tensor", c10::toString(self.scalar_type()),
                is_dtensor(source) ? "DTensor" : "torch.Tensor", c10::toString(source.scalar_type()));
  const DTensorImpl& impl = *maybe_dtensor(source);
  ViewOrigin origin = origin_of(impl);
  origin.is_inference = self.is_inference();
  const at::Tensor same = wrap_view("aten::set_", impl.spec(), Shards(impl.local_tensors()), std::move(origin));
  maybe_dtensor(same)->set_view_link(impl.view_link());
  become(self, same, [](const at::Tensor&) -> at::Tensor {
    C10_THROW_ERROR(
        ValueError,
        "[autograd] set_() gave a view the memory of another tensor, which no gradient of its base follows. "
        "Call set_() on a detach() of the view.");
  });
  return self;
}

at::Tensor& set_empty(at::Tensor& self) { return self.set_(self.new_empty({0})); }

}  // namespace

void register_views(RuleTable& table) {
  const auto passing = [](const char* text, Rule::Describe describe) {
    return Rule(text, std::move(describe)).linear(Linearity::kPass);
  };
  const Rule of_factors = passing("view", describe_view);
  const auto place = [of_factors](const OpCall& call) {
    auto strided = flattened(call);
    if (!strided) strided = unflattened(call);
    return strided ? strided : propagate(call, of_factors.signature(call));
  };
  table.add({"aten::view", "aten::_unsafe_view"},
            Rule::placed(of_factors.text(), place).takes_strided().sizes_in("size").computed_by("aten::reshape"));
  table.add("aten::expand", passing("expand", describe_expand).sizes_in("size"));
  // Tracers take no operators for views but torch's, of which these are composed.
  define_operator("view_as_dtype(Tensor(a) self, ScalarType dtype) -> Tensor(a)",
                  {.compute = &view_as_dtype, .traced = &view_as_dtype});
  table.add("aten::view.dtype", Rule("view as dtype", describe_view_as_dtype).computed_by("shardwise::view_as_dtype"));
  define_operator("strided_from_begin(Tensor(a) self, int[] size, int[] stride, int offset) -> Tensor(a)",
                  {.compute = &strided_from_begin, .traced = &strided_from_begin});
  table.add("shardwise::strided_from_begin", Rule::gathered());
  aten_kernels().impl("_reshape_alias", &reshape_alias);
  aten_kernels().impl("as_strided", &as_strided);
  aten_kernels().impl("as_strided_", &change_strides);
  aten_kernels().impl("resize_", &resize);
  aten_kernels().impl("resize_as_", &resize_as);
  aten_kernels().impl("set_.source_Tensor", &set_memory);
  aten_kernels().impl("set_", &set_empty);
}

}  // namespace shardwise
