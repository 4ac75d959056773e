#include "runtime/redistribute/moving.h"

#include "placements/placement_list.h"
#include "runtime/comm/agreement.h"
#include "runtime/comm/comm_policy.h"
#include "runtime/comm/reduce_dtype.h"
#include "runtime/comm/tracing.h"
#include "runtime/tensor/flat_part.h"
#include "text/check.h"

#include <ATen/ops/empty.h>
#include <c10/util/hash.h>

#include <algorithm>

namespace shardwise {
namespace {

/// True if all members mean the same two meshes and every member passes is_agreed.
bool all_agree(const Group& group, const DeviceMesh& from, const DeviceMesh& to, bool is_agreed) {
  Facts facts;
  facts.number(is_agreed);
  for (const DeviceMesh* mesh : {&from, &to}) facts.list(mesh->grid().shape).list(mesh->grid().ranks);
  return have_equal(group, "compare meshes", facts) && is_agreed;
}

/// True if all ranks of both meshes agree, as far as this rank can find out.
bool agree(const DeviceMesh& from, const DeviceMesh& to) {
  const auto within = [&](const DeviceMesh& mesh, bool is_agreed) {
    return mesh.is_member() ? all_agree(*mesh.group(), from, to, is_agreed) : is_agreed;
  };
  if (has_all_ranks_of(from, to)) return within(from, true);
  if (has_all_ranks_of(to, from)) return within(to, true);
  // Ranks in both meshes pass the result of `from` on to `to`, and the combined result back to `from`.
  return within(from, within(to, within(from, true)));
}

}  // namespace

void check_same_meshes(const DeviceMesh& from, const DeviceMesh& to) {
  if (have_same_ranks(from, to)) return;
  SW_CHECK_VALUE(
      agree(from, to),
      "[redistribute] a tensor cannot move from the mesh {} to the mesh {}: the ranks disagree about the two meshes, "
      "because a slice of a mesh has different ranks on each rank. Move it within one mesh, or wrap its value on the "
      "other mesh: DTensor.from_local(x.full_tensor(), mesh, [Replicate()] * mesh.ndim).",
      to_string(from), to_string(to));
}

void check_move(const SpecPtr& source, const SpecPtr& destination) {
  TORCH_INTERNAL_ASSERT(source->sizes() == destination->sizes() && source->dtype() == destination->dtype(),
                        to_string(*source), " cannot become ", to_string(*destination));
  SW_CHECK_VALUE(source->mesh()->world() == destination->mesh()->world() &&
                     source->mesh()->with_memory()->device_type() == destination->mesh()->with_memory()->device_type(),
                 "[redistribute] the meshes {} and {} belong to different worlds or kinds of device. Make both in the "
                 "current world, for one kind of device.",
                 to_string(*source->mesh()), to_string(*destination->mesh()));
  SW_CHECK_NOT_IMPLEMENTED(!source->mesh()->is_meta() || destination->mesh()->is_meta(),
                           "[redistribute] Cannot copy out of meta tensor; no data! {} has no values to move. Use "
                           "torch.empty_like(x, device=...) or Module.to_empty(), and fill it.",
                           to_string(*source));
  if (source->mesh() != destination->mesh() && !is_tracing())  // a graph compares them when it runs
    check_same_meshes(*source->mesh(), *destination->mesh());
}

std::string move_words(const Spec& from, const Spec& to, const PlanOptions& options) {
  std::string result = fmt::format("{} -> {}", to_string(from), to_string(to));
  if (!from.layout().has_one_box_each() || !to.layout().has_one_box_each())  // whose texts are cut
    result += fmt::format(" #{:x}", c10::get_hash(from.layout().hash(), to.layout().hash()));
  return result + words_of(options);
}

bool takes_part(const OwnStep& own) { return own.from->is_member() || own.to->is_member(); }

Participants participants_of(const OwnStep& own) {
  if (own.is_local) return {};
  if (own.among) return {own.among->group()};
  const GroupPtr everyone = own.from->mesh()->world()->everyone();
  return {own.from->mesh()->is_meta() ? without_sending(everyone) : everyone, /*is_whole=*/false};
}

Moving::Moving(const SpecPtr& source, Shards pieces, const SpecPtr& destination, const PlanOptions& options, bool owns)
    : plan_(PlanCache::of_thread().find_or_make(source, destination, options)),
      pieces_(std::move(pieces)),
      device_(pieces_.empty() ? source->mesh()->device() : pieces_[0].device()),
      options_(options),
      owns_(owns) {
  if (plan_->last_sending >= 0)
    check_comm_policy(
        [&] { return fmt::format("moves {} to {}", to_string(*source), to_string(destination->layout())); });
  for (const OwnStep& own : plan_->steps)
    if (own.step.combines_terms())
      check_reducible(at::empty({0}, at::TensorOptions().dtype(source->dtype()).device(device_)), own.step.reduce);
}

void Moving::arrive(Shards pieces) {
  pieces_ = std::move(pieces);
  owns_ = true;
  ++next_;
}

void Moving::run_in_place() {
  if (next().step.combines_terms()) {
    for (const auto& [terms, result] : begin_reduction())
      all_reduce(*reducing_group(), terms, result, next().step.reduce);
  } else {
    own();
    make_partial(next());
  }
  ++next_;
}

std::vector<std::unique_ptr<Reduction>> Moving::start_reduction(WaitsFor waits) {
  std::vector<std::unique_ptr<Reduction>> reductions;
  for (const auto& [terms, result] : begin_reduction())
    if (auto reduction = start_all_reduce(*reducing_group(), terms, result, next().step.reduce, waits))
      reductions.push_back(std::move(reduction));
  ++next_;
  return reductions;
}

std::vector<Terms> Moving::begin_reduction() {
  const Spec& from = *next().from;
  if (from.flat_sizes()) {
    own();
    pieces_ = joined(from, std::move(pieces_));
    at::Tensor flat = flat_part(from, pieces_);
    if (at::Tensor alike = empty_flat_part(from, flat.options()); alike.strides() != flat.strides()) {
      flat = alike.copy_(flat);
      pieces_ = pieces_of(from, flat);
    }
    const at::Tensor row = flat.as_strided({flat.numel()}, {1});
    return {{row, row}};
  }
  const auto row_of = [](const at::Tensor& piece) { return piece.as_strided({piece.numel()}, {1}); };
  std::vector<Terms> rows;
  for (at::Tensor& piece : pieces_) {
    const bool is_row = !piece.is_conj() && !piece.is_neg() &&
                        piece.strides() == dense_strides(piece.sizes(), from.strides());  // alike on all ranks
    const at::Tensor result = is_row && owns_ ? piece : empty_piece(from, piece.sizes(), device_);
    if (!is_row) result.copy_(piece);
    rows.push_back({row_of(is_row ? piece : result), row_of(result)});
    piece = result;
  }
  owns_ = true;
  return rows;
}

void Moving::run(bool stops_at_last_sending) {
  while (!is_done()) {
    const bool is_last = static_cast<int>(next_) == plan_->last_sending;
    if (stops_at_last_sending && is_last && takes_part(next())) return;
    run_next();
  }
}

void Moving::run_for_readers() {
  while (!is_done())
    if (!take_views()) run_next();
}

void Moving::run_next() {
  if (!takes_part(next())) {
    skip();
  } else if (!next().step.has_boxes()) {
    run_in_place();
  } else {
    arrive(std::move(begin().run()[0]));
  }
}

bool Moving::take_views() {
  const OwnStep& own = next();
  if (!takes_part(own) || !own.is_local || !own.step.has_boxes() || own.to->flat_sizes()) return false;
  const auto& to = own.to->boxes();
  const auto is_one_part = [&](const Transfer& part) { return part.box.sizes == to[part.piece].sizes; };
  if (own.part.receives.size() != to.size() || !std::ranges::all_of(own.part.receives, is_one_part)) return false;
  Shards views(to.size());
  for (const Transfer& part : own.part.receives)
    views[part.piece] = narrowed(pieces_[part.from_piece], own.from->boxes()[part.from_piece], part.box);
  pieces_ = std::move(views);
  ++next_;
  return true;
}

void Moving::own() {
  if (!owns_)
    for (at::Tensor& piece : pieces_) piece = piece.resolve_conj().resolve_neg().clone();
  owns_ = true;
}

void Moving::make_partial(const OwnStep& own) {
  const Reduce reduce = own.step.reduce;
  const bool keeps = reduce != Reduce::kSum && reduce != Reduce::kProduct;
  if (keeps || (*own.from->mesh()->coord())[own.step.mesh_dim] == 0) return;
  for (at::Tensor& piece : pieces_) piece.fill_(identity_of(reduce, own.from->dtype()));
}

}  // namespace shardwise
