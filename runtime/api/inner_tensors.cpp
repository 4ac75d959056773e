#include "runtime/api/inner_tensors.h"

#include "placements/placement_list.h"
#include "runtime/api/equal_values.h"
#include "runtime/api/from_local.h"
#include "runtime/comm/agreement.h"
#include "runtime/tensor/below_autograd.h"
#include "runtime/tensor/subclass_parts.h"
#include "text/check.h"

#include <algorithm>

namespace shardwise {
namespace {

constexpr const char* kOp = "inner_tensors";

/// The dim along which an inner tensor is cut when the object is: `inner_size` of its indices for `size` indices of the object.
struct Scaling {
  static constexpr int64_t kWhole = -1,
                           kUnknown = -2;  // in place of the dim; unknown if a rank has no indices to cut
  int64_t dim = kUnknown;
  int64_t inner_size = 0, size = 0;

  bool is_alike(const Scaling& other) const {
    return dim == other.dim && inner_size * other.size == other.inner_size * size;
  }
  /// Exact at the ends of shards, because each rank has whole indices.
  int64_t scaled(int64_t index) const { return index * inner_size / size; }
};

class InnerTensors {
 public:
  explicit InnerTensors(const at::Tensor& tensor)
      : spec_(spec_of(tensor)), group_(*spec_->mesh()->group()), object_(maybe_dtensor(tensor)->local_tensors()[0]) {
    for (int64_t dim = 0; dim < spec_->dim(); ++dim)
      if (std::ranges::count(spec_->placements(), dim, &Placement::split_dim) > 0) dims_.push_back(dim);
  }

  std::vector<std::pair<std::string, at::Tensor>> run() {
    agree_on_scalings();
    check_common_values();
    std::vector<std::pair<std::string, at::Tensor>> result;
    for (size_t i = 0; i < parts_.inner.size(); ++i) result.emplace_back(parts_.names[i], distributed(i));
    return result;
  }

 private:
  Scaling& scaling(size_t i, size_t d) { return scalings_[i * dims_.size() + d]; }

  void agree_on_scalings() {
    Facts own;
    RankError error;
    try {
      own = own_scalings();
    } catch (const std::exception& refusal) {
      error = {RankError::Type::kNotImplemented, taken_error(refusal)};
    }
    std::vector<FactReader> all;
    const auto facts = agree(group_, kOp, own, error);
    for (const Facts& each : facts) all.emplace_back(each);
    scalings_.resize(parts_.inner.size() * dims_.size());
    for (size_t i = 0; i < parts_.inner.size(); ++i)
      for (size_t d = 0; d < dims_.size(); ++d)
        for (int64_t rank = 0; rank < group_.size(); ++rank) take(i, d, rank, all[rank]);
  }

  Facts own_scalings() {
    parts_ = flattened(object_);
    std::vector<Cut> cuts;
    for (const int64_t dim : dims_) {
      cuts.push_back(object_.size(dim) > 0 ? cut_of(kOp, object_, dim) : Cut{{}, true});
      TORCH_CHECK_NOT_IMPLEMENTED(
          cuts.back().keeps_context ||
              object_.size(dim) == 1,  // the only shorter slice is empty, so nothing can be compared
          fmt::format("[{}] a slice along dim {} changes the context that a {}'s __tensor_flatten__ returns, so the "
                      "context depends on the placements. Shard the tensor along another dim, or implement "
                      "__create_write_items__ in the class.",
                      kOp, dim, class_of(object_)));
    }
    std::string name = "a " + class_of(object_) + " of";
    for (const std::string& each : parts_.names) name += " " + each;
    Facts own(name);
    for (size_t i = 0; i < parts_.inner.size(); ++i)
      for (size_t d = 0; d < dims_.size(); ++d) {
        const int64_t dim = cuts[d].dims.empty() ? Scaling::kUnknown : cuts[d].dims[i];
        own.number(dim).number(dim < 0 ? 0 : parts_.inner[i].size(dim)).number(object_.size(dims_[d]));
      }
    return own;
  }

  void take(size_t i, size_t d, int64_t rank, FactReader& facts) {
    const int64_t dim = facts.number(), inner_size = facts.number();
    const Scaling given{dim, inner_size, facts.number()};
    Scaling& known = scaling(i, d);
    if (known.dim == Scaling::kUnknown) known = given;
    SW_CHECK_VALUE(given.dim == Scaling::kUnknown || known.is_alike(given),
                   "[{}] on rank {}, {} indices of inner tensor {} of a {} belong to {} indices of dim {}; on another "
                   "rank, {} belong to {}. Make the parts from one object, with distribute_tensor.",
                   kOp, group_.ranks[rank], given.inner_size, parts_.names[i], class_of(object_), given.size, dims_[d],
                   known.inner_size, known.size);
  }

  /// Checks inner tensors that a slice does not cut. There is one for the whole object, so ranks that hold different slices must have equal
  /// values.
  void check_common_values() {
    std::vector<std::string> names;
    Facts own("values");
    std::vector<size_t> common;
    for (size_t i = 0; i < parts_.inner.size(); ++i) {
      bool is_common = false;
      for (size_t d = 0; d < dims_.size(); ++d) is_common |= scaling(i, d).dim == Scaling::kWhole;
      if (!is_common) continue;
      Digest digest;
      add_form(digest, parts_.inner[i]);
      add_values(digest, parts_.inner[i]);
      own.number(digest.value());
      common.push_back(i);
    }
    if (common.empty()) return;
    std::vector<std::vector<int64_t>> values;
    for (const Facts& facts : agree(group_, kOp, own)) {
      FactReader reader(facts);
      auto& of_rank = values.emplace_back();
      while (!reader.at_end()) of_rank.push_back(reader.number());
    }
    for (size_t k = 0; k < common.size(); ++k)
      for (int64_t a = 0; a < group_.size(); ++a)
        for (int64_t b = 0; b < a; ++b)
          SW_CHECK_VALUE(
              values[a][k] == values[b][k] || !is_shared(common[k], a, b),
              "[{}] ranks {} and {} have different values in inner tensor {} of a {}. A slice does not cut this "
              "tensor, so all ranks must have the same values. Make the parts from one object, with distribute_tensor.",
              kOp, group_.ranks[b], group_.ranks[a], parts_.names[common[k]], class_of(object_));
  }

  /// True if members `a` and `b` must have equal values of inner tensor `i`. False if they differ along a mesh dim that replicates, or that
  /// shards a dim that cuts the inner tensor.
  bool is_shared(size_t i, int64_t a, int64_t b) {
    const auto& grid = spec_->mesh()->grid();
    const Dims at = *grid.coord_of(group_.ranks[a]), there = *grid.coord_of(group_.ranks[b]);
    for (size_t m = 0; m < at.size(); ++m) {
      if (at[m] == there[m]) continue;
      const auto d = std::ranges::find(dims_, spec_->placements()[m].split_dim()) - dims_.begin();
      if (d == static_cast<int64_t>(dims_.size()) || scaling(i, d).dim != Scaling::kWhole) return false;
    }
    return true;
  }

  at::Tensor distributed(size_t i) {
    const at::Tensor& inner = parts_.inner[i];
    Placements placements(spec_->mesh()->ndim());
    Dims sizes(inner.sizes());
    for (size_t d = 0; d < dims_.size(); ++d) {
      const Scaling& cut = scaling(i, d);
      if (cut.dim < 0) continue;
      const auto resized = spec_->layout().resized(dims_[d], [&](int64_t index) { return cut.scaled(index); });
      for (const int64_t m : mesh_dims_splitting(spec_->placements(), dims_[d]))
        placements[m] = resized[m].with_dim(cut.dim);
      sizes[cut.dim] = cut.scaled(spec_->sizes()[dims_[d]]);
    }
    return from_local(inner, spec_->mesh(), std::move(placements), {.shape = sizes});
  }

  SpecPtr spec_;
  const Group& group_;
  const at::Tensor& object_;
  Flattened parts_;
  std::vector<int64_t> dims_;      // the object's dims that are sharded
  std::vector<Scaling> scalings_;  // by inner tensor and by dim
};

}  // namespace

std::vector<std::pair<std::string, at::Tensor>> inner_tensors(const at::Tensor& tensor) {
  const BelowAutograd guard;
  if (!spec_of(tensor)->is_member()) return {};
  return InnerTensors(tensor).run();
}

}  // namespace shardwise
