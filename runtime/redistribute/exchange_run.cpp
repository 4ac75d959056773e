#include "runtime/redistribute/exchange_run.h"

#include "plans/pattern.h"
#include "runtime/comm/collectives.h"
#include "runtime/comm/reduce_dtype.h"
#include "runtime/tensor/flat_part.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/zeros.h>

namespace shardwise {
namespace {

/// The collective that the items amount to; all_to_all if they differ, or if their steps send nothing.
const char* pattern_name(const std::vector<ExchangeItem>& items) {
  const Pattern first = pattern_of(*items[0].step);
  const bool is_one = first != Pattern::kSlice && std::ranges::all_of(items, [&](const ExchangeItem& item) {
                        return pattern_of(*item.step) == first;
                      });
  return name_of(is_one ? first : Pattern::kAllToAll);
}

/// The dtype in which the terms of `step` are combined. torch has no arithmetic for some dtypes, and the sum of an avg may overflow its
/// dtype.
at::ScalarType combined_as(const Step& step, at::ScalarType dtype) {
  if (!step.combines_terms() || dtype == at::kBool) return dtype;
  return reduce_dtype(dtype, step.reduce);
}

at::Tensor empty_piece(const Spec& spec, c10::IntArrayRef sizes, c10::Device device, at::ScalarType dtype) {
  return at::empty_strided(sizes, dense_strides(sizes, spec.strides()),
                           at::TensorOptions().dtype(dtype).device(device));
}

/// New pieces. Joined ones share one buffer.
Shards empty_pieces(const Spec& spec, c10::Device device, at::ScalarType dtype) {
  if (spec.flat_sizes()) return pieces_of(spec, empty_flat_part(spec, at::TensorOptions().dtype(dtype).device(device)));
  Shards pieces;
  for (const Box& box : spec.boxes()) pieces.push_back(empty_piece(spec, box.sizes, device, dtype));
  return pieces;
}

}  // namespace

at::Tensor narrowed(at::Tensor piece, const Box& held, const Box& box) {
  for (size_t dim = 0; dim < held.sizes.size(); ++dim)
    if (box.sizes[dim] != held.sizes[dim])
      piece = piece.narrow(static_cast<int64_t>(dim), box.offsets[dim] - held.offsets[dim], box.sizes[dim]);
  return piece;
}

at::Tensor narrowed_to(at::Tensor tensor, const Box& box) {
  const int64_t skipped = static_cast<int64_t>(box.sizes.size()) - tensor.dim();
  for (int64_t dim = 0; dim < tensor.dim(); ++dim)
    if (tensor.size(dim) != 1) tensor = tensor.narrow(dim, box.offsets[skipped + dim], box.sizes[skipped + dim]);
  return tensor;
}

at::Tensor empty_piece(const Spec& spec, c10::IntArrayRef sizes, c10::Device device) {
  return empty_piece(spec, sizes, device, spec.dtype());
}

ExchangeRun::ExchangeRun(Participants participants, std::vector<ExchangeItem> items, c10::Device device)
    : participants_(std::move(participants)),
      items_(std::move(items)),
      device_(device),
      n_rounds_(items_[0].step->n_rounds),
      rank_(items_[0].from->mesh()->rank()) {
  for (const ExchangeItem& item : items_)
    results_.push_back(empty_pieces(*item.to, device, combined_as(*item.step, item.to->dtype())));
}

std::vector<Shards> ExchangeRun::run() {
  const auto combines = [](const ExchangeItem& item) { return item.step->combines_terms(); };
  const bool is_small = std::ranges::all_of(items_, [](const ExchangeItem& item) { return item.row_bytes > 0; });
  if (is_small && std::ranges::none_of(items_, combines)) {
    gather();
  } else if (is_small && items_.size() == 1) {
    reduce_whole();
  } else {
    start();
    return finish();
  }
  return std::move(results_);
}

void ExchangeRun::gather() {
  const Group& group = *participants_.group;
  std::vector<int64_t> begins{0};
  for (const ExchangeItem& item : items_) begins.push_back(begins.back() + item.row_bytes);
  const at::Tensor row = at::zeros({begins.back()}, at::TensorOptions(at::kByte).device(device_));
  const at::Tensor rows = at::empty({group.size(), row.numel()}, row.options());
  const auto part_of = [](const at::Tensor& in, int64_t begin, const Box& box, at::ScalarType dtype) {
    return in.narrow(0, begin, box.numel() * static_cast<int64_t>(c10::elementSize(dtype))).view(dtype).view(box.sizes);
  };
  for (size_t i = 0; i < items_.size(); ++i) {
    int64_t begin = begins[i];
    for (size_t k = 0; k < items_[i].pieces.size(); begin += items_[i].pieces[k++].nbytes())
      part_of(row, begin, items_[i].from->boxes()[k], items_[i].from->dtype()).copy_(items_[i].pieces[k]);
  }
  all_gather(group, {.name = "exchange", .counted_as = pattern_name(items_)}, row, rows);
  for (size_t i = 0; i < items_.size(); ++i)
    for (const Transfer& receive : items_[i].part->receives) {
      int64_t begin = begins[i];
      for (const Box& held : items_[i].from->layout().boxes(receive.rank)) {
        if (held.contains(receive.box)) {
          const auto piece = part_of(rows[group.index_of(receive.rank)], begin, held, items_[i].from->dtype());
          place_of(i, receive, receive.box).copy_(narrowed(piece, held, receive.box));
          break;
        }
        begin += held.numel() * items_[i].from->element_bytes();
      }
    }
}

void ExchangeRun::reduce_whole() {
  const auto& [step, part, from, to, pieces, row_bytes] = items_[0];
  const at::Tensor whole = pieces[0].resolve_conj().resolve_neg().clone(at::MemoryFormat::Contiguous);
  all_reduce(*from->mesh()->group(step->mesh_dim), whole.view(-1), step->reduce);
  for (const Transfer& receive : part->receives)
    if (receive.term == 0) place_of(0, receive, receive.box).copy_(narrowed(whole, from->boxes()[0], receive.box));
  for (at::Tensor& piece : results_[0]) piece = piece.to(to->dtype());
}

void ExchangeRun::start(bool may_change) {
  may_change_ = may_change;
  for (int64_t round = 0; round + 1 < n_rounds_; ++round) {
    start_round(round);
    finish_round(round);
  }
  start_round(n_rounds_ - 1);
  if (may_change) secure_kept(n_rounds_ - 1);
}

/// Stores or copies the values that this rank keeps, before the source can change.
void ExchangeRun::secure_kept(int64_t round) {
  for (Arrival& arrival : arrivals_) {
    if (!is_kept(arrival)) continue;
    if (is_term(arrival)) {
      arrival.kept = kept_part(arrival, round).clone();
    } else {
      store(arrival, kept_part(arrival, round), round);
      arrival.is_stored = true;
    }
  }
}

std::vector<Shards> ExchangeRun::finish() {
  finish_round(n_rounds_ - 1);
  for (size_t i = 0; i < items_.size(); ++i) {
    const Step& step = *items_[i].step;
    if (!step.combines_terms()) continue;
    for (at::Tensor& piece : results_[i]) {
      if (step.reduce == Reduce::kAvg) piece.div_(step.from.grid().shape[step.mesh_dim]);
      piece = piece.to(items_[i].to->dtype());
    }
  }
  return std::move(results_);
}

void ExchangeRun::start_round(int64_t round) {
  messages_ = std::make_unique<PackedMessages>(device_, may_change_);
  post_receives(round);
  post_sends(round);
  if (participants_.group)
    messages_->start(*participants_.group, participants_.is_whole, [&] { return pattern_name(items_); });
}

void ExchangeRun::finish_round(int64_t round) {
  for (const Arrival& arrival : arrivals_)  // while the messages are in flight
    if (!is_term(arrival) && !arrival.is_stored) store(arrival, kept_part(arrival, round), round);
  messages_->finish();
  for (const Arrival& arrival : arrivals_)
    if (is_term(arrival))
      store(arrival, arrival.number ? messages_->arrived(*arrival.number) : kept_part(arrival, round), round);
  arrivals_.clear();
  messages_.reset();
}

at::Tensor ExchangeRun::source_part(size_t item, int64_t piece, const Box& box) const {
  return narrowed(items_[item].pieces[piece], items_[item].from->boxes()[piece], box);
}

at::Tensor ExchangeRun::kept_part(const Arrival& arrival, int64_t round) const {
  if (arrival.kept.defined()) return arrival.kept;
  return source_part(arrival.item, arrival.transfer->from_piece, part(arrival.transfer->box, round));
}

at::Tensor ExchangeRun::place_of(size_t item, const Transfer& transfer, const Box& box) const {
  return narrowed(results_[item][transfer.piece], items_[item].to->boxes()[transfer.piece], box);
}

void ExchangeRun::post_sends(int64_t round) {
  for (size_t i = 0; i < items_.size(); ++i)
    for (const Transfer& send : items_[i].part->sends)
      if (const Box box = part(send.box, round); !box.empty())
        messages_->send(send.rank, source_part(i, send.piece, box));
}

void ExchangeRun::post_receives(int64_t round) {
  for (size_t i = 0; i < items_.size(); ++i)
    for (const Transfer& receive : items_[i].part->receives) {
      const Box box = part(receive.box, round);
      if (box.empty()) continue;
      Arrival arrival{i, &receive, {}, {}};
      if (is_kept(arrival))
        arrivals_.push_back(std::move(arrival));
      else if (is_term(arrival)) {
        arrival.number = messages_->receive_apart(receive.rank, box.sizes, items_[i].from->dtype());
        arrivals_.push_back(std::move(arrival));
      } else {
        messages_->receive(receive.rank, place_of(i, receive, box));
      }
    }
}

void ExchangeRun::store(const Arrival& arrival, const at::Tensor& values, int64_t round) {
  const at::Tensor place = place_of(arrival.item, *arrival.transfer, part(arrival.transfer->box, round));
  if (arrival.transfer->term == 0)
    place.copy_(values);
  else
    accumulate(place, values.to(place.scalar_type()), red_op(items_[arrival.item].step->reduce));
}

}  // namespace shardwise
