#include "ops/embedding/gradient_sink.h"

#include "ops/embedding/split_rows.h"
#include "placements/placement_list.h"
#include "runtime/comm/collectives.h"
#include "runtime/comm/comm_scope.h"
#include "runtime/comm/communication.h"
#include "runtime/comm/messages.h"
#include "runtime/comm/order_check.h"
#include "runtime/tensor/below_autograd.h"
#include "runtime/tensor/sparse.h"
#include "text/check.h"

#include <ATen/ops/_sparse_coo_tensor_unsafe.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

namespace shardwise {
namespace {

/// The groups of ids in box `i`.
IdGroups groups_in(const Spec& spec, size_t i, const at::Tensor& ids, int64_t skipped) {
  const Box& box = spec.boxes()[i];
  return group_ids(ids, box.offsets[0], box.sizes[0], skipped, /*with_group_of=*/false,
                   TableOfIds{spec.sizes()[0], /*are_in_piece=*/true});
}

/// Gathers the rows and sums of all members of `group`, in the group's order.
BoxGrads gathered(const Group& group, const at::Tensor& rows, const at::Tensor& sums) {
  const at::Tensor numbers = rows.is_meta() ? at::zeros(rows.sizes(), at::kLong) : rows.cpu();
  const auto* begin = numbers.const_data_ptr<int64_t>();
  const auto all = all_gather_numbers(group, std::vector<int64_t>(begin, begin + numbers.numel()));
  std::vector<at::Tensor> ids, parts;
  std::vector<Message> sends, receives;
  for (size_t member = 0; member < all.size(); ++member) {
    const auto n = static_cast<int64_t>(all[member].size());
    const bool is_self = static_cast<int64_t>(member) == group.index;
    ids.push_back(at::tensor(all[member], at::kLong).to(rows.device()));
    parts.push_back(is_self ? sums : at::empty({n, sums.size(1)}, sums.options()));
    if (is_self || sums.size(1) == 0) continue;
    if (n > 0) receives.push_back({group.ranks[member], parts.back()});
    if (sums.numel() > 0) sends.push_back({group.ranks[member], sums});
  }
  exchange(group, sums.device(), std::move(sends), std::move(receives))->wait();
  return {at::cat(ids), {at::cat(parts)}};
}

/// Gathers the gradient rows of other ranks along the mesh dims where `spec` is Partial, because ranks looked up different ids there.
void complete(const SpecPtr& spec, std::vector<BoxGrads>& boxes, int64_t skipped) {
  for (const int64_t m : mesh_dims_with_terms(spec->placements())) {
    for (size_t i = 0; i < boxes.size(); ++i) {
      const IdGroups groups = groups_in(*spec, i, boxes[i].ids, skipped);
      boxes[i] = gathered(*spec->mesh()->group(m), groups.rows + spec->boxes()[i].offsets[0],
                          sum_groups(boxes[i].grads, groups));
    }
  }
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

at::Tensor GradientSink::take(const SpecPtr& spec, std::vector<BoxGrads> boxes, int64_t skipped) const {
  const BelowAutograd guard;
  if (is_complete()) complete(spec, boxes, skipped);
  std::vector<BoxGroups> grouped;
  for (size_t i = 0; i < boxes.size(); ++i)
    grouped.push_back({groups_in(*spec, i, boxes[i].ids, skipped), boxes[i].grads});
  return take_groups(spec, grouped);
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
