// ops/shapes/flip_roll_repeat.cpp: flip, roll, rot90 and repeat.
//
// On a 1-D mesh a flipped or rolled dim stays sharded: each rank fetches the intervals that its own interval is made
// of. On other meshes the dim is gathered first.
#include "ops/families.h"
#include "ops/support/dim_pieces.h"
#include "ops/support/kernels.h"
#include "placements/placement_list.h"

#include <ATen/Functions.h>
#include <c10/core/WrapDimMinimal.h>

#include <algorithm>

namespace shardwise {
namespace {

/// True if the mesh has only one dim, and that shards `dim`.
bool is_only_shard(const at::Tensor& self, int64_t dim) {
  const Spec& spec = *spec_of(self);
  return spec.mesh()->ndim() == 1 && spec.layout().n_parts(dim) > 1 && self.numel() > 0;
}

/// Fetches the intervals `sources_of(own interval)` of `dim`, in order, from the ranks that have them.
template <class Sources>
std::vector<at::Tensor> fetched(const at::Tensor& self, int64_t dim, const Sources& sources_of) {
  const Spec& spec = *spec_of(self);
  std::vector<ShardMetadata> boxes;
  const std::vector<Interval> intervals = spec.layout().shard_intervals(dim);
  for (size_t i = 0; i < intervals.size(); ++i) {
    if (intervals[i].length() == 0) continue;
    for (const Interval& source : sources_of(intervals[i])) {
      if (source.length() <= 0) continue;
      Box box = Box::whole(spec.sizes());
      box.set_interval(dim, source);
      boxes.push_back({box.offsets, box.sizes, spec.mesh()->grid().ranks[i]});
    }
  }
  const at::Tensor moved = moved_to(self, {Placement::enumerable(std::move(boxes))});
  const Shards& pieces = maybe_dtensor(moved)->shards();
  return {pieces.begin(), pieces.end()};
}

/// Concatenates the parts along `dim`; the result is laid out as `self` and row-major.
at::Tensor laid_out_as(const at::Tensor& self, const std::vector<at::Tensor>& parts, int64_t dim) {
  const SpecPtr& spec = spec_of(self);
  Shards pieces;
  if (spec->is_member())
    pieces.push_back(parts.empty() ? maybe_dtensor(self)->shards()[0].clone() : at::cat(parts, dim));
  return wrap(Spec::intern(spec->mesh(), spec->sizes(), spec->placements().vec(), row_major_strides(spec->sizes()),
                           spec->dtype()),
              std::move(pieces));
}

/// Each rank fetches the mirror image of its own interval.
at::Tensor flip_sharded(const at::Tensor& self, int64_t dim) {
  const int64_t length = self.size(dim);
  std::vector<at::Tensor> parts =
      fetched(self, dim, [&](Interval own) { return std::vector<Interval>{{length - own.end, length - own.begin}}; });
  for (at::Tensor& part : parts) part = part.flip(dim);
  return laid_out_as(self, parts, dim);
}

at::Tensor roll_sharded(const at::Tensor& self, int64_t shift, int64_t dim) {
  const int64_t length = self.size(dim);
  shift = ((shift % length) + length) % length;
  return laid_out_as(self,
                     fetched(self, dim,
                             [&](Interval own) {
                               const Interval rolled{own.begin - shift, own.end - shift};
                               const Interval wrapped{rolled.begin + length, std::min(rolled.end, int64_t{0}) + length};
                               const Interval rest{std::max(rolled.begin, int64_t{0}), rolled.end};
                               return std::vector<Interval>{wrapped, rest};
                             }),
                     dim);
}

/// Redistributed so that none of `dims` is sharded.
at::Tensor with_whole(const at::Tensor& self, c10::IntArrayRef dims) {
  return moved_to(self, whole_along(spec_of(self)->placements(), dims));
}

Dims wrapped(c10::IntArrayRef dims, int64_t n_dims) {
  Dims result;
  for (int64_t dim : dims) result.push_back(c10::maybe_wrap_dim(dim, n_dims));
  return result;
}

template <class OnPiece>
at::Tensor by_piece(const at::Tensor& self, const Dims& strides, const OnPiece& on_piece) {
  const Spec& spec = *spec_of(self);
  Shards pieces;
  for (const at::Tensor& piece : maybe_dtensor(self)->shards()) pieces.push_back(on_piece(piece));
  return wrap(Spec::intern(spec.mesh(), spec.sizes(), spec.placements().vec(), strides, spec.dtype()),
              std::move(pieces));
}

/// A plain tensor with as many dims: a call on it throws the dense operator's errors about dims and shifts.
at::Tensor one_element(const at::Tensor& self) { return at::empty(Dims(self.dim(), 1), at::TensorOptions()); }

// A Partial of any kind passes: each rank rearranges its own term.

at::Tensor flip(const at::Tensor& self, c10::IntArrayRef dims) {
  at::flip(one_element(self), dims);
  if (self.dim() == 0) return self.clone();
  at::Tensor result = self;
  Dims rest = wrapped(dims, self.dim());
  const auto sharded = std::ranges::find_if(rest, [&](int64_t dim) { return is_only_shard(self, dim); });
  if (sharded != rest.end()) {
    result = flip_sharded(result, *sharded);
    rest.erase(sharded);
  }
  result = with_whole(result, rest);
  result =
      by_piece(result, Dims(spec_of(result)->strides()), [&](const at::Tensor& piece) { return piece.flip(rest); });
  return in_order_of(self, result);
}

at::Tensor roll(const at::Tensor& self, c10::IntArrayRef shifts, c10::IntArrayRef dims) {
  const bool is_empty = self.numel() == 0;  // for an empty tensor torch accepts any dims
  at::roll(is_empty ? at::empty(self.sizes(), at::TensorOptions()) : one_element(self), shifts, dims);
  if (is_empty) return self.clone();
  if (dims.empty()) {
    // Keeps Partials; the rest is replicated.
    const at::Tensor whole = moved_to(self, replicated_where(spec_of(self)->placements(), &Placement::divides));
    return by_piece(whole, row_major_strides(self.sizes()),
                    [&](const at::Tensor& piece) { return piece.roll(shifts, dims); });
  }
  at::Tensor result = self;
  const Dims along = wrapped(dims, self.dim());
  for (size_t i = 0; i < along.size(); ++i)
    result = is_only_shard(result, along[i])
                 ? roll_sharded(result, shifts[i], along[i])
                 : by_piece(with_whole(result, along[i]), row_major_strides(self.sizes()),
                            [&](const at::Tensor& piece) { return piece.roll(shifts[i], along[i]); });
  return result;
}

/// Repeated dims are whole; new ones come first.
void describe_repeat(const OpCall& call, Signature& signature) {
  const c10::IntArrayRef sizes = call.operands[0].sizes;
  const std::vector<int64_t> repeats = call.arg("repeats").toIntVector();
  Axes input, output(repeats.size() - sizes.size());
  for (size_t dim = 0; dim < sizes.size(); ++dim) {
    const bool is_kept = repeats[repeats.size() - sizes.size() + dim] == 1;
    input.push_back({signature.add_factor(sizes[dim], !is_kept)});
    output.push_back(is_kept ? input.back() : Axis{});
  }
  signature.set({input}, {output});
}

}  // namespace

void register_flip_roll_repeat(RuleTable& table) {
  table.add("aten::flip", pointwise().whole("dims").linear(Linearity::kPass).sampled());  // for tensor classes
  aten_kernels().impl_in_memory("flip", &flip);
  aten_kernels().impl_in_memory("roll", &roll);
  add_torch_compositions({"rot90"});
  table.keep_symbols({"aten::flip", "aten::repeat"});
  table.add("aten::repeat", Rule("repeat", describe_repeat).linear(Linearity::kPass));
}

}  // namespace shardwise
