#include "runtime/redistribute/sparse_move.h"

#include "runtime/comm/agreement.h"
#include "runtime/comm/group_backend.h"
#include "runtime/redistribute/packed_messages.h"
#include "runtime/tensor/below_autograd.h"
#include "text/check.h"

#include <ATen/ops/_sparse_coo_tensor_unsafe.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include <algorithm>

namespace shardwise {
namespace {

/// A piece of a sending rank and a box of a receiving rank that may have entries in common.
struct Pair {
  size_t piece, box;
  Box common;
};

class SparseMove {
 public:
  SparseMove(const DTensorImpl& source, const Spec& to)
      : source_(source), from_(*source.spec()), to_(to), sparse_dim_(source.entries()->sparse_dim) {
    keeps_columns_ = from_.layout().has_one_box_each() && to_.layout().has_one_box_each();
    for (size_t m = 0; m < from_.placements().size(); ++m)
      if (shards_columns(from_.placements()[m]) || shards_columns(to_.placements()[m]))
        keeps_columns_ &= from_.placements()[m] == to_.placements()[m];
  }

  Shards run() {
    const int64_t self = from_.mesh()->rank();
    if (from_.layout().is_replicated()) {
      for (const Pair& pair : pairs(self, self)) take(pair, chosen(pair));
      return assembled();
    }
    const Group& group = *from_.mesh()->group();
    for (const int64_t rank : group.ranks) {
      outgoing_.push_back(pairs(self, rank));
      incoming_.push_back(pairs(rank, self));
    }
    exchange(group);
    return assembled();
  }

 private:
  struct Entries {
    at::Tensor indices;  // [sparse_dim, n], global
    at::Tensor values;   // [n, dense sizes of the common box]
  };

  /// True if `sender` sends to `receiver`. Only one replica of an entry sends it, and only one rank along a new Partial receives it.
  bool sends(int64_t sender, int64_t receiver) const {
    const Dims at = *from_.layout().grid().coord_of(sender), there = *to_.layout().grid().coord_of(receiver);
    for (size_t m = 0; m < at.size(); ++m) {
      const Placement &from = from_.placements()[m], &to = to_.placements()[m];
      const bool stays = from.is_whole() || (from.terms() && to.terms()) || (keeps_columns_ && shards_columns(from));
      if (stays && at[m] != there[m]) return false;
      if (to.terms() && !from.terms() && there[m] != 0) return false;
    }
    return true;
  }

  std::vector<Pair> pairs(int64_t sender, int64_t receiver) const {
    std::vector<Pair> result;
    if (!sends(sender, receiver)) return result;
    const auto pieces = from_.layout().boxes(sender), boxes = to_.layout().boxes(receiver);
    for (size_t piece = 0; piece < pieces.size(); ++piece)
      for (size_t box = 0; box < boxes.size(); ++box)
        if (const Box common = intersect(pieces[piece], boxes[box]); is_due(common))
          result.push_back({piece, box, common});
    return result;
  }

  bool shards_columns(const Placement& placement) const { return placement.split_dim() >= sparse_dim_; }

  /// Whether entries of this common box are sent. Ranks that share rows must have the same entries in the same order, even if they hold
  /// different columns, so an empty range of columns is sent too.
  bool is_due(const Box& common) const {
    if (!to_.layout().has_one_box_each()) return !common.empty();
    return std::all_of(common.sizes.begin(), common.sizes.begin() + sparse_dim_, [](int64_t size) { return size > 0; });
  }

  /// Narrows `values` of `box` to `common` along dense dim `dim`. Pre: the dense dims before it are already narrowed.
  at::Tensor part_of(const at::Tensor& values, int64_t dim, const Box& common, const Box& box) const {
    const int64_t n = common.sizes[dim];
    return values.narrow(dim - sparse_dim_ + 1, n == 0 ? 0 : common.offsets[dim] - box.offsets[dim], n);
  }

  /// The entries of a local piece that are inside the common box.
  Entries chosen(const Pair& pair) const {
    const at::Tensor& piece = source_.shards()[pair.piece];
    const Box& own = from_.boxes()[pair.piece];
    at::Tensor indices = piece._indices(), values = piece._values(), inside;
    for (int64_t dim = 0; dim < sparse_dim_; ++dim) {
      const int64_t begin = pair.common.offsets[dim] - own.offsets[dim], n = pair.common.sizes[dim];
      if (n == own.sizes[dim]) continue;
      const at::Tensor of_dim = indices[dim];
      const at::Tensor is_in = of_dim.ge(begin).logical_and_(of_dim.lt(begin + n));
      inside = inside.defined() ? inside.logical_and_(is_in) : is_in;
    }
    if (inside.defined()) {
      const at::Tensor places = inside.nonzero().squeeze(1);
      indices = indices.index_select(1, places);
      values = values.index_select(0, places);
    }
    for (int64_t dim = sparse_dim_; dim < from_.dim(); ++dim) values = part_of(values, dim, pair.common, own);
    return {indices + first_index(own, indices.options()), values};
  }

  at::Tensor first_index(const Box& box, const at::TensorOptions& options) const {
    const std::vector<int64_t> first(box.offsets.begin(), box.offsets.begin() + sparse_dim_);
    return at::tensor(first, at::kLong).unsqueeze(1).to(options.device());
  }

  Dims value_sizes(const Box& box, int64_t n_entries) const {
    Dims sizes{n_entries};
    for (int64_t dim = sparse_dim_; dim < to_.dim(); ++dim) sizes.push_back(box.sizes[dim]);
    return sizes;
  }

  /// Adds received entries to this rank's box.
  void take(const Pair& pair, Entries entries) {
    const Box& box = to_.boxes()[pair.box];
    at::Tensor values = entries.values;
    if (const Dims sizes = value_sizes(box, values.size(0)); values.sizes() != sizes) {
      values = at::zeros(sizes, values.options());
      at::Tensor part = values;
      for (int64_t dim = sparse_dim_; dim < to_.dim(); ++dim) part = part_of(part, dim, pair.common, box);
      part.copy_(entries.values);
    }
    taken_.resize(to_.boxes().size());
    taken_[pair.box].first.push_back(entries.indices - first_index(box, entries.indices.options()));
    taken_[pair.box].second.push_back(values);
  }

  void exchange(const Group& group) {
    std::vector<std::vector<Entries>> leaving(group.size()), arriving(group.size());
    for (size_t i = 0; i < outgoing_.size(); ++i)
      for (const Pair& pair : outgoing_[i]) leaving[i].push_back(chosen(pair));
    const auto counts = exchanged_counts(group, leaving);
    PackedMessages messages(source_.device());
    for (size_t i = 0; i < incoming_.size(); ++i) {
      if (static_cast<int64_t>(i) == group.index) {
        arriving[i] = leaving[i];
        continue;
      }
      for (const Entries& entries : leaving[i])
        for (const at::Tensor& part : {entries.indices, entries.values}) messages.send(group.ranks[i], part);
      for (size_t pair = 0; pair < incoming_[i].size(); ++pair) {
        const int64_t n = counts[i][pair];
        const Entries& entries = arriving[i].emplace_back(
            Entries{at::empty({sparse_dim_, n}, options_of(at::kLong)),
                    at::empty(value_sizes(incoming_[i][pair].common, n), options_of(from_.dtype()))});
        for (const at::Tensor& part : {entries.indices, entries.values}) messages.receive(group.ranks[i], part);
      }
    }
    messages.start(group);
    messages.finish();
    for (size_t i = 0; i < incoming_.size(); ++i)
      for (size_t pair = 0; pair < incoming_[i].size(); ++pair) take(incoming_[i][pair], arriving[i][pair]);
  }

  /// The number of entries that each rank sends to this one, by pair.
  std::vector<std::vector<int64_t>> exchanged_counts(const Group& group,
                                                     const std::vector<std::vector<Entries>>& leaving) const {
    std::vector<std::vector<int64_t>> sent(leaving.size());
    std::vector<int64_t> n_in;
    for (size_t i = 0; i < leaving.size(); ++i)
      for (const Entries& entries : leaving[i]) sent[i].push_back(entries.indices.size(1));
    for (const auto& pairs : incoming_) n_in.push_back(static_cast<int64_t>(pairs.size()));
    return exchange_numbers(group, numbers_device(group), sent, n_in);
  }

  at::TensorOptions options_of(c10::ScalarType dtype) const {
    return at::TensorOptions().dtype(dtype).device(source_.device());
  }

  Shards assembled() {
    taken_.resize(to_.boxes().size());
    Shards result;
    for (size_t i = 0; i < taken_.size(); ++i) {
      const Box& box = to_.boxes()[i];
      auto& [indices, values] = taken_[i];
      if (indices.empty()) {
        indices.push_back(at::empty({sparse_dim_, 0}, options_of(at::kLong)));
        values.push_back(at::empty(value_sizes(box, 0), options_of(from_.dtype())));
      }
      result.push_back(at::_sparse_coo_tensor_unsafe(at::cat(indices, 1), at::cat(values), box.sizes));
    }
    return result;
  }

  const DTensorImpl& source_;
  const Spec& from_;
  const Spec& to_;
  int64_t sparse_dim_;
  bool keeps_columns_;                                  // dense dims are sharded alike before and after
  std::vector<std::vector<Pair>> outgoing_, incoming_;  // by index in the group
  std::vector<std::pair<std::vector<at::Tensor>, std::vector<at::Tensor>>> taken_;  // by box
};

}  // namespace

Shards move_sparse(const DTensorImpl& source, const SpecPtr& to) {
  const Spec& from = *source.spec();
  SW_CHECK_NOT_IMPLEMENTED(
      from.mesh() == to->mesh(),
      "[redistribute] a sparse tensor moves within its mesh only, not from {} to {}. Move to_dense().",
      to_string(*from.mesh()), to_string(*to->mesh()));
  for (const Placement& placement : to->placements())
    SW_CHECK_VALUE(placement.terms().value_or(Reduce::kSum) == Reduce::kSum,
                   "[redistribute] a sparse tensor cannot be {}: its parts are sums. Use Partial().",
                   to_string(placement));
  if (!from.is_member()) return {};
  BelowAutograd guard;
  return SparseMove(source, *to).run();
}

}  // namespace shardwise
