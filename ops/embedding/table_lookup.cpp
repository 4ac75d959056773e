#include "ops/embedding/table_lookup.h"

#include "ops/embedding/id_check.h"
#include "ops/embedding/packed_rows.h"
#include "placements/placement_list.h"
#include "runtime/comm/agreement.h"
#include "runtime/comm/comm_policy.h"
#include "runtime/comm/comm_scope.h"
#include "runtime/comm/order_check.h"
#include "runtime/dispatch/plain_operand.h"
#include "runtime/tensor/below_autograd.h"
#include "text/check.h"

#include <ATen/ops/_unique2.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>

namespace shardwise {

at::Tensor prepared_table(const char* op, const at::Tensor& weight, bool passes_sums) {
  SW_CHECK_TYPE(is_dtensor(weight),
                "[{}] got a torch.Tensor of shape [{}] as the table next to a DTensor of ids. Wrap it with "
                "distribute_tensor(x, mesh, [Replicate()]).",
                op, fmt::join(weight.sizes(), ", "));
  SW_CHECK_VALUE(weight.dim() == 2, "[{}] the table of shape [{}] has {} dims. Give [rows, columns].", op,
                 fmt::join(weight.sizes(), ", "), weight.dim());
  const Layout& layout = spec_of(weight)->layout();
  const bool has_known_pieces = layout.enumerated().has_value();
  const Placements given = layout.joined_dim() ? without_boxes(layout.placements()) : layout.placements().vec();
  Placements placements = replicated_where(given, [&](const Placement& placement) {
    return (placement.terms() && !(passes_sums && placement.is_linear())) ||
           (placement.places_boxes() && !has_known_pieces);
  });
  return placements == spec_of(weight)->placements() ? weight : redistribute(weight, std::move(placements));
}

at::Tensor distributed_operand(const char* op, std::string_view arg, const at::Tensor& operand, const MeshPtr& mesh) {
  if (const auto* impl = maybe_dtensor(operand)) {
    check_same_mesh(op, mesh, impl->spec()->mesh());
    return operand;
  }
  if (operand.dim() > 0) {
    const OpInfo info(*find_operator(op));
    check_plain(info, operand, info.arg_index(arg), mesh);
  }
  return replica_of(operand, mesh);
}

at::Tensor prepared_ids(const char* op, const at::Tensor& ids, const Spec& table) {
  const auto type = ids.scalar_type();
  SW_CHECK_TYPE(type == at::kLong || type == at::kInt, "[{}] ids are {}. Use int64 or int32.", op, c10::toString(type));
  const at::Tensor own = distributed_operand(op, "indices", ids, table.mesh());
  const Spec& spec = *spec_of(own);
  const BelowAutograd guard;
  const SpecPtr whole = spec.layout().has_one_box_each() ? spec.reduced() : spec.replicated();
  return whole.get() == &spec ? own : redistribute(own, whole->placements().vec());
}

void check_padding(const char* op, int64_t padding_idx, int64_t n_rows) {
  SW_CHECK_VALUE(padding_idx < std::max<int64_t>(n_rows, 1),
                 "[{}] padding_idx {} is no row of the table: it has {} rows. Use one in [0, {}), or none.", op,
                 padding_idx, n_rows, n_rows);
}

namespace {

/// The policy treats a lookup's messages like the redistribution of ids to Replicate(), because ids go to all owners.
void check_policy(const TableLookup& lookup) {
  if (lookup.plan->ids_are_equal || CommPolicyScope::current() == CommPolicy::kAllow) return;
  const Spec& ids = *spec_of(lookup.ids);
  check_comm_policy(
      [&] { return fmt::format("moves {} to {}", to_string(ids), to_string(ids.replicated()->layout())); });
}

}  // namespace

TableLookup TableLookup::start(const char* op, const SpecPtr& table, const at::Tensor& ids, LookupPlanPtr plan,
                               const LookupOptions& options) {
  TableLookup lookup{op, table, std::move(plan), ids, {}};
  const auto layouts = [&] { return fmt::format("{}, ids {}", to_string(*table), to_string(*spec_of(ids))); };
  const CommScope scope(CommScope::current_op(), CommScope::current_cause(), layouts);
  // Compares tables under the order check, because messages of rows do not name their table.
  if (checks_order() && table->is_member()) have_equal(*table->mesh()->group(), "look up", Facts());
  if (lookup.plan->ids != spec_of(ids)->placements()) lookup.ids = redistribute(ids, lookup.plan->ids);
  if (!lookup.plan->exchanges_rows()) {
    if (options.checks_ids) check_ids(op, lookup.ids, table->sizes()[0]);
    return lookup;
  }
  check_policy(lookup);
  if (!table->is_member()) return lookup;
  if (!lookup.plan->ids_are_equal)
    lookup.row_exchange = RowExchange::make(op, table, lookup.plan->exchange_along, lookup.own_ids(),
                                            *spec_of(lookup.ids), options.checks_ids);
  else if (options.checks_ids)
    RowExchange::check_equal(op, *table, lookup.own_ids(), *spec_of(lookup.ids));
  return lookup;
}

std::vector<IdGroups> TableLookup::own_groups() const {
  std::vector<IdGroups> groups;
  for (const Box& box : table->boxes())
    groups.push_back(group_ids(own_ids(), box.offsets[0], box.sizes[0], /*skipped=*/-1, /*with_group_of=*/true,
                               TableOfIds{table->sizes()[0]}));
  return groups;
}

TableLookup TableLookup::of_parts(Placements of_ids, c10::ArrayRef<IdGroups> own) const {
  LookupPlan of_part = *plan;
  for (size_t m = 0; m < of_ids.size(); ++m)
    if (plan->exchange_along[m]) of_part.found[m] = of_ids[m];
  of_part.result = of_part.found;
  of_part.rows = spec_of_rows(of_part.found);
  of_part.ids_are_equal = of_ids == plan->ids;
  of_part.ids = of_ids;
  TableLookup lookup{op, table, std::make_shared<const LookupPlan>(of_part), redistribute(ids, std::move(of_ids)), {}};
  if (!table->is_member()) return lookup;
  if (of_part.ids_are_equal) {
    lookup.row_exchange = RowExchange::make_of_equal_ids(table, plan->exchange_along, lookup.own_ids());
    return lookup;
  }
  const Box& all = spec_of(ids)->boxes()[0];
  const Layout& parts = spec_of(lookup.ids)->layout();
  const auto part_of = [&](int64_t rank, const at::Tensor& per_id) {
    const Box box = parts.boxes(rank)[0];
    at::Tensor part = per_id.view(all.sizes);
    for (int64_t dim = 0; dim < part.dim(); ++dim)
      part = part.narrow(dim, box.offsets[dim] - all.offsets[dim], box.sizes[dim]);
    return part.reshape({-1});
  };
  lookup.row_exchange = RowExchange::make_of_parts(table, plan->exchange_along, lookup.own_ids(), own, part_of);
  return lookup;
}

SpecPtr TableLookup::spec_of_rows(Placements placements) const {
  Dims sizes(ids.sizes());
  sizes.push_back(table->sizes()[1]);
  return Spec::intern(table->mesh(), sizes, std::move(placements), row_major_strides(sizes), table->dtype());
}

at::Tensor TableLookup::own_ids() const {
  const Shards& pieces = maybe_dtensor(ids)->shards();
  return pieces.empty() ? at::empty({0}, at::TensorOptions().dtype(ids.scalar_type()).device(ids.device())) : pieces[0];
}

at::Tensor TableLookup::find_rows(c10::ArrayRef<at::Tensor> pieces, bool are_packed) const {
  const Dims& sizes = plan->rows->boxes()[0].sizes;
  if (row_exchange) {
    const at::Tensor rows = are_packed ? row_exchange->fetch_packed(pieces) : row_exchange->fetch(pieces);
    return lookup_rows(rows, row_exchange->groups().group_of, 0).view(sizes);
  }
  const at::Tensor here = own_ids();
  const bool has_one_box = table->layout().has_one_box_each();
  if (has_one_box && !are_packed) return lookup_rows(pieces[0], here, table->boxes()[0].offsets[0]);
  const auto options = at::TensorOptions().dtype(table->dtype()).device(table->mesh()->device());
  const at::Tensor result = at::zeros(sizes, options), rows = result.view({here.numel(), sizes.back()});
  const int64_t first_column = has_one_box ? table->boxes()[0].offsets[1] : 0;
  for (size_t i = 0; i < pieces.size(); ++i) {  // each piece fills in its columns for the ids in its rows
    const Box& box = table->boxes()[i];
    const at::Tensor columns = rows.narrow(1, box.offsets[1] - first_column, box.sizes[1]);
    if (are_packed)
      lookup_packed_rows_into(columns, pieces[i], here, box.offsets[0]);
    else
      lookup_rows_into(columns, pieces[i], here, box.offsets[0]);
  }
  return result;
}

at::Tensor TableLookup::counts() const { return redistribute(inverse_counts(ids, at::kDouble), plan->ids); }

RowGrads TableLookup::columns_of(const Box& box, const RowGrads& grads) const {
  return grads.columns(grads.values.size(1) == table->sizes()[1] ? box.offsets[1] : 0, box.sizes[1]);
}

std::vector<BoxGrads> TableLookup::grads_of_boxes(const RowGrads& grads) const {
  if (scatters_gradients()) return row_exchange->scatter_gradients(sum_groups(grads, row_exchange->groups()));
  std::vector<BoxGrads> boxes;
  for (const Box& box : table->boxes()) boxes.push_back({own_ids(), columns_of(box, grads)});
  return boxes;
}

at::Tensor inverse_counts(const at::Tensor& ids, at::ScalarType dtype) {
  const BelowAutograd guard;
  const at::Tensor all = redistribute(ids, Placements(spec_of(ids)->placements().size()));
  std::vector<at::Tensor> pieces;
  for (const at::Tensor& piece : maybe_dtensor(all)->shards()) {
    if (piece.is_meta()) {
      pieces.push_back(at::empty(ids.sizes(), piece.options().dtype(dtype)));
      continue;
    }
    const auto [values, places, counts] =
        at::_unique2(piece, /*sorted=*/false, /*return_inverse=*/true, /*return_counts=*/true);
    pieces.push_back(counts.to(dtype).reciprocal().index_select(0, places.reshape(-1)).view(ids.sizes()));
  }
  return from_pieces(std::move(pieces),
                     Spec::intern(spec_of(ids)->mesh(), ids.sizes(), spec_of(all)->placements().vec(),
                                  row_major_strides(ids.sizes()), dtype));
}

}  // namespace shardwise
