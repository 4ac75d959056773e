// ops/embedding/max_norm.cpp: rescales rows whose norm exceeds max_norm, among the rows that any rank looks up.
#include "ops/embedding/id_check.h"
#include "ops/embedding/kernel_views.h"
#include "ops/embedding/lookup_operators.h"
#include "ops/embedding/table_lookup.h"
#include "ops/support/kernels.h"
#include "placements/placement_list.h"
#include "runtime/comm/collectives.h"
#include "runtime/tensor/below_autograd.h"
#include "text/check.h"

#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/maximum.h>
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
  element_of(table.scalar_type());
}

/// The sum of |x|^p over the columns of each row, float64; the largest |x| if p is infinite.
at::Tensor row_powers(const at::Tensor& rows, double p) {
  const at::Tensor norms = at::linalg_vector_norm(rows, p, {1}, /*keepdim=*/false, at::kDouble);
  return p == 0 || std::isinf(p) ? norms : norms.pow(p);
}

/// Shortens the rows that `ids` name. Parts of one row may lie on several ranks: these reduce the powers of all rows with ids.
void shorten(const Spec& spec, const Shards& pieces, const at::Tensor& ids, double p, double max_norm) {
  struct Part {
    at::Tensor piece, rows, places;  // the named rows of the piece, and their places in `named`
  };
  const at::Tensor named = group_ids(ids, 0, spec.sizes()[0]).rows;
  at::Tensor powers = at::zeros({named.numel()}, named.options().dtype(at::kDouble));
  std::vector<Part> parts;
  for (size_t i = 0; i < pieces.size(); ++i) {
    const Interval held = spec.boxes()[i].interval(0);
    if (pieces[i].numel() == 0) continue;
    const at::Tensor places = named.ge(held.begin).logical_and_(named.lt(held.end)).nonzero().view(-1);
    const at::Tensor rows = named.index_select(0, places) - held.begin;
    const at::Tensor of_piece = row_powers(pieces[i].index_select(0, rows), p), so_far = powers.index_select(0, places);
    powers.index_copy_(0, places, std::isinf(p) ? at::maximum(so_far, of_piece) : so_far + of_piece);
    parts.push_back({pieces[i], rows, places});
  }
  const auto mesh_dims = spec.layout().has_one_box_each() ? mesh_dims_splitting(spec.placements(), 1)
                                                          : mesh_dims_that_differ(spec.placements());
  for (const int64_t m : mesh_dims)
    all_reduce(*spec.mesh()->group(m), powers, std::isinf(p) ? Reduce::kMax : Reduce::kSum);
  const at::Tensor norms = p == 0 || std::isinf(p) ? powers : powers.pow(1 / p);
  for (const auto& [piece, rows, places] : parts) {
    const at::Tensor own = norms.index_select(0, places), too_long = own.gt(max_norm).nonzero().view(-1);
    if (too_long.numel() == 0) continue;
    const at::Tensor changed = rows.index_select(0, too_long), values = piece.index_select(0, changed);
    const at::Tensor factors = max_norm / (own.index_select(0, too_long) + 1e-7);  // as torch's
    const auto type = sum_type(piece.scalar_type());
    piece.index_copy_(0, changed, (values.to(type) * factors.to(type).unsqueeze(1)).to(piece.scalar_type()));
  }
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
  shorten(spec, maybe_dtensor(self)->shards(), maybe_dtensor(all)->shards()[0], norm_type, max_norm);
  return self;
}

}  // namespace

void register_embedding_renorm() { aten_kernels().impl("embedding_renorm_", &renorm); }

}  // namespace shardwise
