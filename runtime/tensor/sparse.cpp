#include "runtime/tensor/sparse.h"

#include "runtime/comm/agreement.h"
#include "runtime/comm/group_backend.h"
#include "runtime/tensor/object_lock.h"
#include "text/check.h"

namespace shardwise {
namespace {

bool splits_entries(const Placement& placement, int64_t sparse_dim) {
  return !placement.is_whole() && placement.split_dim() < sparse_dim;
}

/// Each rank's counts of its boxes. Every rank sends its own counts to every rank.
EntryCounts exchanged(const Spec& spec, const std::vector<int64_t>& own) {
  const Group& group = *spec.mesh()->group();
  std::vector<int64_t> n_boxes;
  for (const int64_t rank : group.ranks) n_boxes.push_back(static_cast<int64_t>(spec.layout().boxes(rank).size()));
  const EntryCounts by_index = exchange_numbers(group, numbers_device(group), EntryCounts(group.size(), own), n_boxes);
  EntryCounts counts;
  for (const int64_t rank : spec.layout().grid().ranks) counts.push_back(by_index[group.index_of(rank)]);
  return counts;
}

/// Specs for entries in one row: the pieces' entries one after another, by rank and box.
EntrySpecs specs_by_piece(const Spec& spec, int64_t sparse_dim, const EntryCounts& counts) {
  SW_CHECK_NOT_IMPLEMENTED(spec.mesh()->ndim() == 1,
                           "[sparse] entries of {} are in pieces on a mesh of several dims. Redistribute the tensor "
                           "first, with Shard or Replicate in their place.",
                           to_string(spec));
  Dims values{0};
  for (int64_t dim = sparse_dim; dim < spec.dim(); ++dim) values.push_back(spec.sizes()[dim]);
  Dims indices{sparse_dim, 0};
  std::vector<ShardMetadata> of_indices, of_values;
  const auto& ranks = spec.layout().grid().ranks;
  for (size_t i = 0; i < ranks.size(); ++i)
    for (const int64_t n : counts[i]) {
      ShardMetadata part{Dims(values.size(), 0), values, ranks[i]};
      part.offsets[0] = values[0];
      part.sizes[0] = n;
      of_values.push_back(std::move(part));
      of_indices.push_back({{0, indices[1]}, {sparse_dim, n}, ranks[i]});
      values[0] += n;
      indices[1] += n;
    }
  return {Spec::intern(spec.mesh(), indices, {Placement::enumerable(std::move(of_indices))}, row_major_strides(indices),
                       at::kLong),
          Spec::intern(spec.mesh(), values, {Placement::enumerable(std::move(of_values))}, row_major_strides(values),
                       spec.dtype())};
}

class SplitEntries {
 public:
  SplitEntries(const Spec& spec, int64_t sparse_dim, const EntryCounts& counts)
      : spec_(spec), grid_(spec.layout().grid()), sparse_dim_(sparse_dim) {
    int64_t n_parts = 1;
    for (size_t m = 0; m < grid_.shape.size(); ++m)
      if (splits_entries(spec.placements()[m], sparse_dim)) n_parts *= grid_.shape[m];
    parts_.assign(n_parts, -1);
    for (size_t i = 0; i < counts.size(); ++i) {
      int64_t& part = parts_[part_of(*grid_.coord_of(grid_.ranks[i]))];
      SW_CHECK_VALUE(part < 0 || part == counts[i][0],
                     "[sparse] rank {} holds {} entries, but ranks with the same part hold {}, of {}. Give ranks with "
                     "the same part the same indices.",
                     grid_.ranks[i], counts[i][0], part, to_string(spec));
      part = counts[i][0];
    }
  }

  EntrySpecs specs() const {
    Dims values{0};
    for (const int64_t part : parts_) values[0] += part;
    const Dims indices{sparse_dim_, values[0]};
    for (int64_t dim = sparse_dim_; dim < spec_.dim(); ++dim) values.push_back(spec_.sizes()[dim]);
    std::vector<Placement> of_indices, of_values;
    size_t n_inner = parts_.size();
    for (size_t m = 0; m < grid_.shape.size(); ++m) {
      const Placement& placement = spec_.placements()[m];
      if (splits_entries(placement, sparse_dim_)) {
        n_inner /= grid_.shape[m];
        const Dims sizes = summed(n_inner);
        of_indices.push_back(Placement::shard(1, sizes));
        of_values.push_back(Placement::shard(0, sizes));
      } else {
        of_indices.emplace_back();
        of_values.push_back(placement.is_whole() ? placement
                                                 : placement.with_dim(placement.split_dim() - sparse_dim_ + 1));
      }
    }
    return {Spec::intern(spec_.mesh(), indices, std::move(of_indices), row_major_strides(indices), at::kLong),
            Spec::intern(spec_.mesh(), values, std::move(of_values), row_major_strides(values), spec_.dtype())};
  }

 private:
  /// The index of the part of the entries that the rank at `coord` holds, with outer mesh dims first.
  size_t part_of(c10::IntArrayRef coord) const {
    size_t part = 0;
    for (size_t m = 0; m < coord.size(); ++m)
      if (splits_entries(spec_.placements()[m], sparse_dim_)) part = part * grid_.shape[m] + coord[m];
    return part;
  }

  /// The sizes along an outer mesh dim, if the inner dims split each of its parts in `n_inner`.
  Dims summed(size_t n_inner) const {
    Dims sizes(parts_.size() / n_inner, 0);
    for (size_t i = 0; i < parts_.size(); ++i) sizes[i / n_inner] += parts_[i];
    return sizes;
  }

  const Spec& spec_;
  const RankGrid& grid_;
  int64_t sparse_dim_;
  std::vector<int64_t> parts_;
};

}  // namespace

std::shared_ptr<const EntryCounts> agreed_counts(const DTensorImpl& sparse) {
  SparseEntries& entries = *sparse.entries();
  if (auto agreed = std::atomic_load(&entries.counts)) return agreed;  // threads of a backward also ask
  const ObjectLock lock(&entries);
  if (auto agreed = std::atomic_load(&entries.counts)) return agreed;
  const Spec& spec = *sparse.spec();
  std::vector<int64_t> own = c10::fmap(sparse.shards(), [&](const at::Tensor& piece) { return piece._nnz(); });
  bool is_split = false;
  for (const Placement& placement : spec.placements()) is_split |= splits_entries(placement, entries.sparse_dim);
  EntryCounts counts;
  if (is_split && spec.is_member())
    counts = exchanged(spec, own);
  else
    for (const int64_t rank : spec.layout().grid().ranks)
      counts.push_back(spec.is_member() ? own : std::vector<int64_t>(spec.layout().boxes(rank).size(), 0));
  auto agreed = std::make_shared<const EntryCounts>(std::move(counts));
  std::atomic_store(&entries.counts, agreed);
  return agreed;
}

EntrySpecs entry_specs(const Spec& spec, int64_t sparse_dim, const EntryCounts& counts) {
  return spec.layout().has_one_box_each() ? SplitEntries(spec, sparse_dim, counts).specs()
                                          : specs_by_piece(spec, sparse_dim, counts);
}

}  // namespace shardwise
