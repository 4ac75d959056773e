#include "runtime/redistribute/exchange_run.h"

#include "runtime/comm/reduce_dtype.h"
#include "runtime/redistribute/buffers.h"

#include <ATen/ops/empty_strided.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/minimum.h>

#include <algorithm>
#include <map>

namespace shardwise {
namespace {

using Bundle = std::vector<std::pair<size_t, const Transfer*>>;  // (item, transfer) of one peer

/// The part of `piece` (which is the box `held`) inside `box`.
at::Tensor narrowed(at::Tensor piece, const Box& held, const Box& box) {
  for (size_t dim = 0; dim < held.sizes.size(); ++dim)
    if (box.sizes[dim] != held.sizes[dim])
      piece = piece.narrow(static_cast<int64_t>(dim), box.offsets[dim] - held.offsets[dim], box.sizes[dim]);
  return piece;
}

/// The dtype in which the terms of `step` are combined: torch has no arithmetic for some, and a sum may not fit where the avg does.
at::ScalarType combined_as(const Step& step, at::ScalarType dtype) {
  if (step.kind != Step::Kind::kReduce || dtype == at::kBool) return dtype;
  return reduce_dtype(dtype, step.reduce);
}

/// Into `total`, whose dtype is that of combined_as.
void combine(at::Tensor total, const at::Tensor& values, Reduce reduce) {
  const at::Tensor term = values.to(total.scalar_type());
  switch (reduce) {
    case Reduce::kSum:
    case Reduce::kAvg:
      total.add_(term);
      return;
    case Reduce::kProduct:
      total.mul_(term);
      return;
    case Reduce::kMax:
      at::maximum_out(total, total, term);
      return;
    case Reduce::kMin:
      at::minimum_out(total, total, term);
      return;
  }
}

int64_t aligned(int64_t offset, int64_t element_bytes) {
  return (offset + element_bytes - 1) / element_bytes * element_bytes;
}

/// Where each box of a message lies (bytes), and its length.
std::pair<std::vector<int64_t>, int64_t> offsets_of(const std::vector<std::pair<int64_t, int64_t>>& numels_and_bytes) {
  std::vector<int64_t> offsets;
  int64_t end = 0;
  for (const auto& [numel, element_bytes] : numels_and_bytes) {
    offsets.push_back(aligned(end, element_bytes));
    end = offsets.back() + numel * element_bytes;
  }
  return {std::move(offsets), end};
}

at::Tensor empty_piece(const Spec& spec, c10::IntArrayRef sizes, c10::Device device, at::ScalarType dtype) {
  return at::empty_strided(sizes, dense_strides(sizes, spec.strides()),
                           at::TensorOptions().dtype(dtype).device(device));
}

at::Tensor slot(const at::Tensor& buffer, int64_t offset, const Box& box, at::ScalarType dtype) {
  const auto n_bytes = box.numel() * static_cast<int64_t>(c10::elementSize(dtype));
  return buffer.narrow(0, offset, n_bytes).view(dtype).view(box.sizes);
}

}  // namespace

at::Tensor empty_piece(const Spec& spec, c10::IntArrayRef sizes, c10::Device device) {
  return empty_piece(spec, sizes, device, spec.dtype());
}

ExchangeRun::ExchangeRun(Party party, std::vector<ExchangeItem> items, c10::Device device)
    : party_(std::move(party)),
      items_(std::move(items)),
      device_(device),
      n_rounds_(items_[0].step->n_rounds),
      rank_(items_[0].from->mesh()->rank()) {
  for (const ExchangeItem& item : items_) {
    Shards& result = results_.emplace_back();
    for (const Box& box : item.to->boxes())
      result.push_back(empty_piece(*item.to, box.sizes, device, combined_as(*item.step, item.to->dtype())));
  }
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

/// Stores or copies what this rank keeps.
void ExchangeRun::secure_kept(int64_t round) {
  for (Arrival& arrival : arrivals_) {
    if (arrival.transfer->rank != rank_) continue;
    if (items_[arrival.item].step->kind == Step::Kind::kExchange) {
      store(arrival.item, *arrival.transfer, {}, round);
      arrival.is_stored = true;
    } else {
      arrival.values =
          source_part(arrival.item, arrival.transfer->from_piece, part(arrival.transfer->box, round)).clone();
    }
  }
}

std::vector<Shards> ExchangeRun::finish() {
  finish_round(n_rounds_ - 1);
  for (size_t i = 0; i < items_.size(); ++i) {
    const Step& step = *items_[i].step;
    if (step.kind != Step::Kind::kReduce) continue;
    for (at::Tensor& piece : results_[i]) {
      if (step.reduce == Reduce::kAvg) piece.div_(step.from.grid().shape[step.mesh_dim]);
      piece = piece.to(items_[i].to->dtype());
    }
  }
  return std::move(results_);
}

void ExchangeRun::start_round(int64_t round) {
  post_receives(round);
  post_sends(round);
  if (party_.group)
    messages_ = exchange(*party_.group, device_, std::move(sends_), std::move(receives_), party_.is_whole);
  sends_.clear();
  receives_.clear();
}

void ExchangeRun::finish_round(int64_t round) {
  const auto needs_no_message = [&](const Arrival& arrival) {
    return arrival.transfer->rank == rank_ && items_[arrival.item].step->kind == Step::Kind::kExchange;
  };
  for (const Arrival& arrival : arrivals_)  // while the messages are under way
    if (needs_no_message(arrival) && !arrival.is_stored) store(arrival.item, *arrival.transfer, {}, round);
  if (messages_) messages_->wait();
  for (const Arrival& arrival : arrivals_)
    if (!needs_no_message(arrival)) store(arrival.item, *arrival.transfer, arrival.values, round);
  for (const at::Tensor& buffer : buffers_) BufferPool::of_thread().give_back(buffer);
  arrivals_.clear();
  buffers_.clear();
  messages_.reset();
}

at::Tensor ExchangeRun::source_part(size_t item, int64_t piece, const Box& box) const {
  return narrowed(items_[item].pieces[piece], items_[item].from->boxes()[piece], box).resolve_conj().resolve_neg();
}

at::Tensor ExchangeRun::place_of(size_t item, const Transfer& transfer, const Box& box) const {
  return narrowed(results_[item][transfer.piece], items_[item].to->boxes()[transfer.piece], box);
}

Message ExchangeRun::packed(int64_t peer, const Bundle& bundle, int64_t round) {
  const auto& [first_item, first] = bundle[0];
  if (bundle.size() == 1) {
    at::Tensor values = source_part(first_item, first->piece, part(first->box, round));
    if (values.is_contiguous() && !may_change_) return {peer, std::move(values)};
  }
  std::vector<std::pair<int64_t, int64_t>> extents;
  for (const auto& [item, transfer] : bundle)
    extents.emplace_back(part(transfer->box, round).numel(), items_[item].from->element_bytes());
  auto [offsets, n_bytes] = offsets_of(extents);
  const at::Tensor buffer = buffers_.emplace_back(BufferPool::of_thread().take(n_bytes, device_));
  auto fill = [this, bundle, round, buffer, offsets = std::move(offsets)] {
    for (size_t i = 0; i < bundle.size(); ++i) {
      const auto& [item, transfer] = bundle[i];
      const Box box = part(transfer->box, round);
      slot(buffer, offsets[i], box, items_[item].from->dtype()).copy_(source_part(item, transfer->piece, box));
    }
  };
  return {peer, buffer, std::move(fill)};
}

/// The next rank first, so that not all send to rank 0 at once.
void ExchangeRun::post_sends(int64_t round) {
  std::map<int64_t, Bundle> by_peer;
  for (size_t i = 0; i < items_.size(); ++i)
    for (const Transfer& send : items_[i].part->sends)
      if (!part(send.box, round).empty()) by_peer[send.rank].emplace_back(i, &send);
  const auto next = by_peer.upper_bound(rank_);
  for (auto it = next; it != by_peer.end(); ++it) sends_.push_back(packed(it->first, it->second, round));
  for (auto it = by_peer.begin(); it != next; ++it) sends_.push_back(packed(it->first, it->second, round));
}

void ExchangeRun::post_receives(int64_t round) {
  std::map<int64_t, Bundle> by_peer;
  for (size_t i = 0; i < items_.size(); ++i)
    for (const Transfer& receive : items_[i].part->receives) {
      if (part(receive.box, round).empty()) continue;
      arrivals_.push_back({i, &receive, {}});
      if (receive.rank != rank_) by_peer[receive.rank].emplace_back(arrivals_.size() - 1, &receive);
    }
  for (const auto& [peer, bundle] : by_peer) {
    Arrival& first = arrivals_[bundle[0].first];
    if (bundle.size() == 1 && items_[first.item].step->kind == Step::Kind::kExchange) {
      const at::Tensor place = place_of(first.item, *first.transfer, part(first.transfer->box, round));
      if (place.is_contiguous()) {
        receives_.push_back({peer, place});
        continue;
      }
    }
    std::vector<std::pair<int64_t, int64_t>> extents;
    for (const auto& [index, transfer] : bundle)
      extents.emplace_back(part(transfer->box, round).numel(), items_[arrivals_[index].item].from->element_bytes());
    const auto [offsets, n_bytes] = offsets_of(extents);
    const at::Tensor buffer = buffers_.emplace_back(BufferPool::of_thread().take(n_bytes, device_));
    for (size_t i = 0; i < bundle.size(); ++i) {
      Arrival& arrival = arrivals_[bundle[i].first];
      const Box box = part(arrival.transfer->box, round);
      arrival.values = slot(buffer, offsets[i], box, items_[arrival.item].from->dtype());
    }
    receives_.push_back({peer, buffer});
  }
}

void ExchangeRun::store(size_t item, const Transfer& transfer, const at::Tensor& arrived, int64_t round) {
  const Box box = part(transfer.box, round);
  const bool is_kept = transfer.rank == rank_;
  if (!is_kept && !arrived.defined()) return;  // it came straight into its place
  const at::Tensor values = arrived.defined() ? arrived : source_part(item, transfer.from_piece, box);
  const at::Tensor place = place_of(item, transfer, box);
  if (transfer.term == 0)
    place.copy_(values);
  else
    combine(place, values, items_[item].step->reduce);
}

}  // namespace shardwise
