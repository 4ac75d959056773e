#include "wrappers/distributed_embedding/held_rows.h"

#include "text/check.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>

#include <algorithm>

namespace shardwise {

void CacheShortage::raise(const TableLanes& lanes, int64_t rank) const {
  const Lane& of = lanes.lanes[static_cast<size_t>(lane)];
  SW_CHECK_VALUE(
      false,
      "[{}] this lookup uses {} distinct rows of table {} on rank {}{}. They stay in the cache until the backward is "
      "over, but the cache has {} rows. Set cache_rows of the table's storage to {} or more (the table has {} rows on "
      "this rank), or look up fewer samples at a time.",
      kLayer, n_rows, lanes.tables[of.stored->first].name, rank,
      n_held == 0 ? "" : fmt::format(", in addition to {} rows of lookups whose backward is not over", n_held), n_slots,
      n_rows + n_held, of.heights[static_cast<size_t>(rank)]);
}

HeldRows::HeldRows(const TableLanes& lanes, const TableMemory& memory, const IncomingRows& incoming) : lanes_(&lanes) {
  for (size_t lane = 0; lane < lanes.lanes.size(); ++lane) {
    const HotRowsPtr& cache = memory.cache(lane);
    blocks_.push_back(cache ? cache->values() : memory.block(lane));
    rows_.push_back(incoming.rows[lane]);
    if (!cache || incoming.rows[lane].numel() == 0) continue;
    HotRows::Result held = cache->hold(incoming.rows[lane]);
    rows_.back() = held.hold ? held.hold->slots() : at::Tensor();
    if (held.hold)
      holds_.push_back(std::move(held.hold));
    else if (shortage_.lane < 0)
      shortage_ = {static_cast<int64_t>(lane), held.n_rows, held.n_held, cache->n_slots()};
  }
}

void HeldRows::add_notices(std::vector<Message>& sends, std::vector<Message>& receives) {
  if (std::ranges::none_of(lanes_->lanes, [](const Lane& lane) { return lane.stored.has_value(); })) return;
  const Group& group = *lanes_->mesh->group();
  const c10::Device device(lanes_->mesh->device_type());
  const at::Tensor own =
      at::tensor({shortage_.lane, shortage_.n_rows, shortage_.n_held, shortage_.n_slots}, at::kLong).to(device);
  for (int64_t rank = 0; rank < lanes_->n_ranks(); ++rank) {
    notices_.push_back(rank == lanes_->own_rank() ? own : at::empty_like(own));
    if (rank == lanes_->own_rank()) continue;
    sends.push_back({group.ranks[static_cast<size_t>(rank)], own});
    receives.push_back({group.ranks[static_cast<size_t>(rank)], notices_.back()});
  }
}

void HeldRows::check() const {
  for (size_t rank = 0; rank < notices_.size(); ++rank) {
    const at::Tensor notice = notices_[rank].cpu();
    const auto* numbers = notice.const_data_ptr<int64_t>();
    const CacheShortage shortage{numbers[0], numbers[1], numbers[2], numbers[3]};
    if (shortage.lane >= 0) shortage.raise(*lanes_, static_cast<int64_t>(rank));
  }
}

}  // namespace shardwise
