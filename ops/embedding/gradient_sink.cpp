#include "ops/embedding/gradient_sink.h"

#include "ops/embedding/rows_of_ranks.h"
#include "ops/embedding/split_rows.h"
#include "placements/placement_list.h"
#include "runtime/comm/comm_scope.h"
#include "runtime/comm/communication.h"
#include "runtime/comm/order_check.h"
#include "runtime/tensor/below_autograd.h"
#include "runtime/tensor/sparse.h"
#include "text/check.h"

#include <ATen/ops/_sparse_coo_tensor_unsafe.h>
#include <ATen/ops/empty.h>

namespace shardwise {
namespace {

/// The groups of ids in box `i`.
IdGroups groups_in(const Spec& spec, size_t i, const at::Tensor& ids, int64_t skipped) {
  const Box& box = spec.boxes()[i];
  return group_ids(ids, box.offsets[0], box.sizes[0], skipped, /*with_group_of=*/false,
                   TableOfIds{spec.sizes()[0], /*are_in_piece=*/true});
}

at::Tensor dense(const SpecPtr& spec, c10::ArrayRef<BoxGroups> boxes) {
  Shards pieces;
  for (size_t i = 0; i < boxes.size(); ++i)
    pieces.push_back(sum_rows(boxes[i].grads, boxes[i].groups, spec->boxes()[i].sizes[0]));
  return wrap(spec, std::move(pieces));
}

at::Tensor sparse(const SpecPtr& spec, c10::ArrayRef<BoxGroups> boxes) {
  Shards pieces;
  for (size_t i = 0; i < boxes.size(); ++i) {
    const at::Tensor sums = sum_groups(boxes[i].grads, boxes[i].groups);
    pieces.push_back(at::_sparse_coo_tensor_unsafe(boxes[i].groups.rows.unsqueeze(0), sums, spec->boxes()[i].sizes,
                                                   sums.options().layout(at::kSparse), /*is_coalesced=*/true));
  }
  return wrap_sparse(spec->reduced(), std::move(pieces), {.sparse_dim = 1, .is_coalesced = true});
}

/// Begins a step that writes to `table`. It bumps the version, so that a backward that saved the table throws.
void begin_step(const at::Tensor& table, RowOptimizer& optimizer) {
  const MemoryWrite write = maybe_dtensor(table)->begin_write();
  optimizer.begin_step();
  if (!table.is_inference()) table.unsafeGetTensorImpl()->bump_version();
}

}  // namespace

GradientSink GradientSink::of(const at::Tensor& weight, bool is_sparse) {
  GradientSink sink{is_sparse, fused_optimizer(weight), {}, {}};
  if (sink.optimizer) sink.table = weight.detach();
  return sink;
}

GradientSink GradientSink::compared(const char* op, const at::Tensor& weight, bool is_sparse) {
  GradientSink sink = of(weight, is_sparse);
  const auto* const impl = maybe_dtensor(weight);
  if (!checks_order() || !impl) return sink;
  const Spec& spec = *impl->spec();
  if (!spec.is_member() || spec.mesh()->size() == 1 || spec.mesh()->is_meta()) return sink;
  const auto layouts = [&] { return fmt::format("a table {} with a {}", to_string(spec), sink.words()); };
  const CommScope scope(op, CommScope::Cause::kProgram, layouts);
  Communication(*spec.mesh()->group(), {.name = "look_up"}).finish();
  return sink;
}

std::string GradientSink::words() const {
  if (optimizer) return fmt::format("fused optimizer, {}", to_string(optimizer->options().method));
  return is_sparse ? "sparse gradient" : "dense gradient";
}

void GradientSink::check_cached(const char* op, const Spec& spec) const {
  if (!optimizer) return;
  SW_CHECK_NOT_IMPLEMENTED(
      !needs_whole_rows(*optimizer, spec),
      "[{}] the table is laid out as {}, lies in files, and has an optimizer that needs sums over whole rows. Use an "
      "optimizer that is not row-wise and not LAMB, or do not shard the table by columns.",
      op, to_string(spec.placements()));
  SW_CHECK_NOT_IMPLEMENTED(!optimizer->options().rounds_at_random,
                           "[{}] the table lies in files, but its optimizer's stochastic rounding depends on row "
                           "numbers, which a cached row does not have. Use stochastic_rounding=False.",
                           op);
}

void complete(c10::ArrayRef<TableGrads*> tables, int64_t skipped) {
  if (tables.empty()) return;
  const BelowAutograd guard;
  for (const int64_t m : mesh_dims_with_terms(tables[0]->spec->placements())) {
    std::vector<OwnRows> own;
    for (const TableGrads* table : tables)
      for (size_t i = 0; i < table->boxes.size(); ++i) {
        const IdGroups groups = groups_in(*table->spec, i, table->boxes[i].ids, skipped);
        own.push_back({groups.rows + table->spec->boxes()[i].offsets[0], sum_groups(table->boxes[i].grads, groups),
                       table->spec->sizes()[0]});
      }
    if (own.empty()) continue;  // on a rank outside the mesh
    std::vector<BoxGrads> all = rows_of_ranks(*tables[0]->spec->mesh()->group(m), own);
    auto next = all.begin();
    for (TableGrads* table : tables)
      for (BoxGrads& box : table->boxes) box = std::move(*next++);
  }
  for (TableGrads* table : tables) table->spec = table->spec->reduced();
}

at::Tensor GradientSink::take(const SpecPtr& spec, std::vector<BoxGrads> boxes, int64_t skipped) const {
  const BelowAutograd guard;
  TableGrads table{spec, std::move(boxes)};
  if (is_complete()) complete(&table, skipped);
  std::vector<BoxGroups> grouped;
  for (size_t i = 0; i < table.boxes.size(); ++i)
    grouped.push_back({groups_in(*table.spec, i, table.boxes[i].ids, skipped), table.boxes[i].grads});
  return take_groups(table.spec, grouped);
}

at::Tensor GradientSink::take_groups(const SpecPtr& spec, c10::ArrayRef<BoxGroups> boxes) const {
  const BelowAutograd guard;
  if (!optimizer) return is_sparse ? sparse(spec, boxes) : dense(spec, boxes);
  const HotRows::OwnWrite own_write(caches);
  begin_step(table, *optimizer);
  const Shards& pieces = maybe_dtensor(table)->shards();
  if (caches.empty()) update_boxes(*optimizer, *spec, pieces, boxes);
  for (size_t i = 0; i < caches.size(); ++i)
    if (caches[i])
      caches[i]->update(*optimizer, optimizer->updated_rows(pieces[i], i), boxes[i].grads, boxes[i].groups);
  return {};
}

bool GradientSink::updates_alone(const Spec& spec) const {
  return optimizer && caches.empty() && !needs_whole_rows(*optimizer, spec);
}

std::vector<UpdatedRows> GradientSink::begin_update() const {
  begin_step(table, *optimizer);
  const Shards& pieces = maybe_dtensor(table)->shards();
  std::vector<UpdatedRows> updated;
  for (size_t i = 0; i < pieces.size(); ++i) updated.push_back(optimizer->updated_rows(pieces[i], i));
  return updated;
}

}  // namespace shardwise
