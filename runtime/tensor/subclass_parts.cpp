#include "runtime/tensor/subclass_parts.h"

#include "runtime/tensor/spec.h"
#include "text/check.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/narrow.h>
#include <ATen/ops/slice.h>
#include <ATen/ops/split.h>
#include <ATen/ops/split_with_sizes.h>

#include <algorithm>
#include <array>
#include <functional>
#include <map>
#include <optional>

namespace shardwise {
namespace {

/// The first object that an operator of the class gives; if none does, the first error. A class that gives plain values does not answer: they
/// would take the place of its objects on some ranks.
std::pair<at::Tensor, std::string> first_answer(c10::ArrayRef<std::function<at::Tensor()>> ways) {
  std::string refusal;
  for (const auto& way : ways) {
    std::string text = "it returns plain values";
    try {
      if (at::Tensor object = way(); is_subclass(object)) return {std::move(object), ""};
    } catch (const std::exception& error) {
      text = taken_error(error);
    }
    if (refusal.empty()) refusal = text;
  }
  return {{}, refusal};
}

/// True if both have the same sizes and bytes: comparisons of values do not exist for all dtypes.
bool have_same_bytes(const at::Tensor& a, const at::Tensor& b) {
  if (a.sizes() != b.sizes() || a.scalar_type() != b.scalar_type()) return false;
  const auto bytes = [](const at::Tensor& x) { return x.reshape({-1}).contiguous().view(at::kByte); };
  return a.numel() == 0 || a.is_meta() || at::equal(bytes(a), bytes(b));
}

/// The indices [begin, begin + n) along a dim.
at::Tensor part_along(const char* op, const at::Tensor& object, int64_t dim, int64_t begin, int64_t n) {
  if (n == object.size(dim)) return object;
  const std::array<std::function<at::Tensor()>, 4> ways{
      [&] { return at::slice(object, dim, begin, begin + n); },
      [&] { return at::narrow(object, dim, begin, n); },
      [&] {
        TORCH_CHECK(n > 0 && begin % n == 0);
        return at::split(object, n, dim)[begin / n];
      },
      [&] { return at::split_with_sizes(object, {begin, n, object.size(dim) - begin - n}, dim)[1]; },
  };
  const auto [part, refusal] = first_answer(ways);
  SW_CHECK_NOT_IMPLEMENTED(part.defined(),
                           "[{}] a {} does not give its indices {} to {} along dim {}: {}. Choose sizes that it gives, "
                           "implement aten.slice, aten.narrow, aten.split or aten.split_with_sizes in its "
                           "__torch_dispatch__, or make each rank's part and use DTensor.from_local.",
                           op, class_of(object), begin, begin + n, dim, refusal);
  return part;
}

/// The dim along which `part` is the begin of `whole`, -1 if it is all of it; nothing if it is anything else. Sizes alone do not tell: a slice of
/// the columns of a matrix that lies in one row of memory has half of its bytes, but not the first half.
std::optional<int64_t> dim_cut(const at::Tensor& part, const at::Tensor& whole, int64_t n_part, int64_t n_whole) {
  int64_t cut = -1;
  if (part.dim() != whole.dim()) return std::nullopt;
  for (int64_t dim = 0; dim < whole.dim(); ++dim) {
    if (part.size(dim) == whole.size(dim)) continue;
    if (cut >= 0 || part.size(dim) * n_whole != whole.size(dim) * n_part) return std::nullopt;
    cut = dim;
  }
  if (!have_same_bytes(part, cut < 0 ? whole : whole.narrow(cut, 0, part.size(cut)))) return std::nullopt;
  return cut;
}

/// Objects side by side along a dim. They are joined by the class's own aten.cat, or by joining their inner tensors.
class Row {
 public:
  Row(const char* op, std::vector<at::Tensor> objects, int64_t dim)
      : op_(op), objects_(std::move(objects)), dim_(dim) {}

  at::Tensor object() const {
    const std::function<at::Tensor()> cat = [&] { return at::cat(objects_, dim_); };
    const auto [whole, refusal] = first_answer(cat);
    return whole.defined() ? whole : of_inner_tensors(refusal);
  }

 private:
  at::Tensor of_inner_tensors(const std::string& refusal) const {
    const at::Tensor& largest =
        *std::ranges::max_element(objects_, {}, [&](const at::Tensor& object) { return object.size(dim_); });
    const Cut cut = cut_of(op_, largest, dim_);
    SW_CHECK_NOT_IMPLEMENTED(cut.keeps_context,
                             "[{}] a {} has no aten.cat for these parts{}{}, and a slice along dim {} changes the "
                             "context of its __tensor_flatten__, so the parts cannot be joined without aten.cat. "
                             "Implement aten.cat in its __torch_dispatch__.",
                             op_, class_of(largest), refusal.empty() ? "" : ": ", refusal, dim_);
    std::vector<Flattened> parts = c10::fmap(objects_, [&](const at::Tensor& object) { return flattened(object); });
    Flattened whole = parts[&largest - objects_.data()];
    for (const Flattened& part : parts) check_alike(have_same_context(part, whole), "its context");
    for (size_t i = 0; i < whole.inner.size(); ++i)
      whole.inner[i] = cut.dims[i] >= 0 ? side_by_side(inner(parts, i), whole.inner[i], cut.dims[i]) : common(parts, i);
    const Dims sizes = joined_sizes(objects_, dim_);
    return unflattened(largest, whole, sizes, dense_strides(sizes, largest.strides()));
  }

  static std::vector<at::Tensor> inner(const std::vector<Flattened>& parts, size_t i) {
    return c10::fmap(parts, [&](const Flattened& part) { return part.inner[i]; });
  }

  static Dims joined_sizes(c10::ArrayRef<at::Tensor> tensors, int64_t dim) {
    Dims sizes(tensors[0].sizes());
    for (const at::Tensor& tensor : tensors.slice(1)) sizes[dim] += tensor.size(dim);
    return sizes;
  }

  /// at::cat, in memory ordered as the strides of `like`: the object's strides are ordered as those of its parts.
  static at::Tensor side_by_side(const std::vector<at::Tensor>& tensors, const at::Tensor& like, int64_t dim) {
    const Dims sizes = joined_sizes(tensors, dim);
    at::Tensor result = at::empty_strided(sizes, dense_strides(sizes, like.strides()), like.options());
    return at::cat_out(result, tensors, dim);
  }

  at::Tensor common(const std::vector<Flattened>& parts, size_t i) const {
    for (const Flattened& part : parts) check_alike(have_same_bytes(part.inner[i], parts[0].inner[i]), part.names[i]);
    return parts[0].inner[i];
  }

  void check_alike(bool is_alike, const std::string& what) const {
    SW_CHECK_VALUE(is_alike,
                   "[{}] parts of a {} differ in {}, which slices of one object along dim {} have in common. Make the "
                   "parts from one object, with distribute_tensor.",
                   op_, class_of(objects_[0]), what, dim_);
  }

  const char* op_;
  std::vector<at::Tensor> objects_;
  int64_t dim_;
};

}  // namespace

void check_placed(const char* op, const at::Tensor& object, const Layout& layout) {
  SW_CHECK_VALUE(
      layout.has_one_box_each() && !layout.has_terms(),
      "[{}] a {} cannot be placed as {}: a tensor subclass can only be sharded along dims or replicated; its values "
      "cannot be summed. Use Shard and Replicate, or give plain values, such as the result of its dequantize().",
      op, class_of(object), to_string(layout.placements()));
}

at::Tensor part_of(const char* op, at::Tensor object, const Box& held, const Box& wanted) {
  for (size_t dim = 0; dim < wanted.sizes.size(); ++dim) {
    const int64_t n = wanted.sizes[dim];
    object = part_along(op, object, static_cast<int64_t>(dim), n == 0 ? 0 : wanted.offsets[dim] - held.offsets[dim], n);
  }
  return object;
}

at::Tensor copy_of(const char* op, const at::Tensor& object) {
  const std::array<std::function<at::Tensor()>, 2> ways{
      [&] { return at::clone(object); },
      [&] {
        Flattened parts = flattened(object);
        for (at::Tensor& inner : parts.inner) inner = inner.clone();
        return unflattened(object, parts, object.sizes(), object.strides());
      },
  };
  const auto [copy, refusal] = first_answer(ways);
  SW_CHECK_NOT_IMPLEMENTED(copy.defined(),
                           "[{}] a {} does not implement aten.clone, so its parts would share the memory of another "
                           "tensor: {}. Implement aten.clone in its __torch_dispatch__.",
                           op, class_of(object), refusal);
  return copy;
}

Cut cut_of(const char* op, const at::Tensor& object, int64_t dim) {
  const int64_t n_whole = object.size(dim);
  int64_t n = n_whole / 2;  // blocks of a quantisation seldom end there
  const std::array<std::function<at::Tensor()>, 2> ways{
      [&] { return part_along(op, object, dim, 0, n_whole / 2); },
      [&] { return part_along(op, object, dim, 0, n = 0); },
  };
  const auto [part, refusal] = first_answer(ways);
  TORCH_CHECK_NOT_IMPLEMENTED(part.defined(), refusal);
  const Flattened of_whole = flattened(object), of_part = flattened(part);
  Cut result{{}, have_same_context(of_whole, of_part)};
  const bool is_alike = of_whole.names == of_part.names;
  for (size_t i = 0; i < of_whole.names.size(); ++i) {
    const auto cut = is_alike ? dim_cut(of_part.inner[i], of_whole.inner[i], n, n_whole) : std::nullopt;
    SW_CHECK_NOT_IMPLEMENTED(cut,
                             "[{}] a slice of {} of the {} indices of dim {} of a {} does not cut its inner tensor {} "
                             "in proportion along one dim, so it is unknown how the ranks' parts form the whole. "
                             "Implement aten.cat in the class, or save it with __create_write_items__.",
                             op, n, n_whole, dim, class_of(object), of_whole.names[i]);
    result.dims.push_back(*cut);
  }
  return result;
}

at::Tensor joined(const char* op, Parts parts) {
  for (int64_t dim = parts[0].second.dim() - 1; dim >= 0; --dim) {
    std::map<std::vector<int64_t>, Parts> rows;  // by offsets along the other dims
    for (auto& part : parts) {
      std::vector<int64_t> key(part.first.offsets.begin(), part.first.offsets.end());
      key[dim] = 0;
      rows[std::move(key)].push_back(std::move(part));
    }
    parts.clear();
    for (auto& [key, row] : rows) {
      std::ranges::sort(row, {}, [&](const auto& part) { return part.first.offsets[dim]; });
      Box box = row[0].first;
      box.set_interval(dim, {box.offsets[dim], row.back().first.interval(dim).end});
      std::vector<at::Tensor> objects = c10::fmap(row, [&](const auto& part) { return part.second; });
      parts.emplace_back(box, objects.size() == 1 ? objects[0] : Row(op, std::move(objects), dim).object());
    }
  }
  return parts[0].second;
}

}  // namespace shardwise
