// ops/embedding/max_norm.cpp: rescales rows whose norm exceeds max_norm, among the rows that any rank looks up.
#include "ops/embedding/id_check.h"
#include "ops/embedding/lookup_operators.h"
#include "ops/embedding/row_kernels.h"
#include "ops/embedding/table_lookup.h"
#include "ops/support/kernels.h"
#include "placements/placement_list.h"
#include "runtime/comm/collectives.h"
#include "runtime/tensor/below_autograd.h"
#include "text/check.h"

#include <ATen/ops/maximum.h>
#include <ATen/ops/searchsorted.h>
#include <ATen/ops/zeros.h>

#include <cmath>

namespace shardwise {
namespace {

constexpr const char* kRenorm = "aten::embedding_renorm_";

void check(const at::Tensor& table, double max_norm, double p) {
  SW_CHECK_VALUE(max_norm > 0, "[{}] max_norm is {}. Use a number above 0, or None for no limit.", kRenorm, max_norm);
  SW_CHECK_VALUE(p >= 0, "[{}] norm_type is {}. Use a number of 0 or more, or infinity.", kRenorm, p);
  SW_CHECK_VALUE(!spec_of(table)->layout().has_terms(),
                 "[{}] the table is laid out as {}: it is Partial, so no rank has whole rows. Reduce it first with "
                 "redistribute().",
                 kRenorm, to_string(spec_of(table)->placements()));
}

Reduce reduction_of(double p) { return std::isinf(p) ? Reduce::kMax : Reduce::kSum; }

/// For tables with one piece per rank. The sums over each rank's columns are reduced along the mesh dims that shard columns.
void shorten(const Spec& spec, const at::Tensor& piece, const at::Tensor& ids, double p, double max_norm) {
  const Box& box = spec.boxes()[0];
  const IdGroups groups = group_ids(ids, box.offsets[0], box.sizes[0], /*skipped=*/-1, /*with_group_of=*/false,
                                    TableOfIds{spec.sizes()[0]});
  const at::Tensor powers = row_powers(piece, groups.rows, p);
  for (const int64_t m : mesh_dims_splitting(spec.placements(), 1))
    all_reduce(*spec.mesh()->group(m), powers, reduction_of(p));
  shorten_rows(piece, groups.rows, p, max_norm, powers);
}

/// For tables in pieces: parts of one row may lie on any ranks, so the sums of all rows with ids are reduced over all ranks except replicas.
void shorten_pieces(const Spec& spec, const Shards& pieces, const at::Tensor& ids, double p, double max_norm) {
  const at::Tensor all = group_ids(ids, 0, spec.sizes()[0]).rows;
  const at::Tensor powers = at::zeros({all.numel()}, all.options().dtype(at::kDouble));
  std::vector<std::pair<IdGroups, at::Tensor>> parts;  // the groups of each piece, and their indices in `all`
  for (size_t i = 0; i < pieces.size(); ++i) {
    const Box& box = spec.boxes()[i];
    IdGroups groups = group_ids(ids, box.offsets[0], box.sizes[0], /*skipped=*/-1, /*with_group_of=*/false,
                                TableOfIds{spec.sizes()[0]});
    at::Tensor places = at::searchsorted(all, groups.rows + box.offsets[0]);
    const at::Tensor of_piece = row_powers(pieces[i], groups.rows, p);
    const at::Tensor so_far = powers.index_select(0, places);
    powers.index_copy_(0, places, std::isinf(p) ? at::maximum(so_far, of_piece) : so_far + of_piece);
    parts.emplace_back(std::move(groups), std::move(places));
  }
  for (const int64_t m : mesh_dims_that_differ(spec.placements()))
    all_reduce(*spec.mesh()->group(m), powers, reduction_of(p));
  for (size_t i = 0; i < pieces.size(); ++i)
    shorten_rows(pieces[i], parts[i].first.rows, p, max_norm, powers.index_select(0, parts[i].second));
}

at::Tensor& renorm(at::Tensor& self, const at::Tensor& indices, double max_norm, double norm_type) {
  prepared_table(kRenorm, self);
  check(self, max_norm, norm_type);
  const Spec& spec = *spec_of(self);
  const BelowAutograd guard;
  const at::Tensor ids = prepared_ids(kRenorm, indices, spec);
  if (LookupScope::current().checks_ids) check_ids(kRenorm, ids, spec.sizes()[0]);
  const at::Tensor all = redistribute(ids, Placements(spec.placements().size()));
  if (!spec.is_member()) return self;
  const MemoryWrite write = maybe_dtensor(self)->begin_write();
  const at::Tensor& own = maybe_dtensor(all)->shards()[0];
  const Shards& pieces = maybe_dtensor(self)->shards();
  if (spec.layout().has_one_box_each())
    shorten(spec, pieces[0], own, norm_type, max_norm);
  else
    shorten_pieces(spec, pieces, own, norm_type, max_norm);
  return self;
}

}  // namespace

void register_embedding_renorm() { aten_kernels().impl("embedding_renorm_", &renorm); }

}  // namespace shardwise
