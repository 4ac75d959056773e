#include "wrappers/distributed_embedding/table_memory.h"

#include "runtime/tensor/dtensor_impl.h"
#include "runtime/tensor/mapped_memory.h"
#include "text/check.h"
#include "wrappers/distributed_embedding/row_buffers.h"

#include <ATen/ops/empty.h>

namespace shardwise {

TableMemory::TableMemory(const TableLanes& lanes) : lanes_(&lanes) {
  const auto on_mesh = at::TensorOptions().device(lanes.mesh->device_type());
  for (const Lane& lane : lanes.lanes) {
    const int64_t height = lane.heights[static_cast<size_t>(lanes.own_rank())];
    caches_.emplace_back();
    if (lane.stored && height > 0 && lane.width > 0) {
      const TableStorage& storage = *lanes.tables[lane.stored->first].storage;
      blocks_.push_back(mapped_zeros(storage.folder, {height, lane.width}, lane.dtype));
      const auto element = static_cast<int64_t>(c10::elementSize(lane.dtype));
      caches_.back() =
          std::make_shared<HotRows>(blocks_.back(), storage.rows_of(lane.width * element), on_mesh.device());
      continue;
    }
    blocks_.push_back(at::empty({height, lane.width}, on_mesh.dtype(lane.dtype)));
    prefer_large_pages(blocks_.back());
  }
  for (size_t t = 0; t < lanes.tables.size(); ++t) {
    replicated_.emplace_back();
    if (lanes.tables[t].is_replicated)
      replicated_.back().push_back(at::empty(lanes.tables[t].spec->sizes(), options(t)));
  }
  watch_writes();
}

/// All DTensors of a table share one TensorMemory, so that the cache notices a write to any of them.
void TableMemory::watch_writes() {
  for (size_t t = 0; t < lanes_->tables.size(); ++t) {
    memories_.push_back(c10::make_intrusive<TensorMemory>());
    for (const HotRowsPtr& cache : caches_of(t))
      if (cache) before_writes_.push_back(memories_[t]->before_writes([cache] { cache->expect_write(); }));
  }
}

std::vector<HotRowsPtr> TableMemory::caches_of(size_t t) const {
  std::vector<HotRowsPtr> caches;
  const LayerTable& table = lanes_->tables[t];
  if (!table.storage) return caches;
  for (const Box& box : table.spec->boxes()) {
    const LaneSlice* slice = lanes_->own_slice(table, box);
    caches.push_back(slice == nullptr ? nullptr : caches_[slice->lane]);
  }
  return caches;
}

void TableMemory::write_back() const {
  for (const HotRowsPtr& cache : caches_)
    if (cache) cache->write_back();
}

void TableMemory::expect_write(size_t table) const {
  for (const HotRowsPtr& cache : caches_of(table))
    if (cache) cache->expect_write();
}

at::TensorOptions TableMemory::options(size_t table) const {
  return at::TensorOptions().dtype(lanes_->tables[table].spec->dtype()).device(lanes_->mesh->device_type());
}

std::vector<TablePart> TableMemory::pieces(size_t t) const {
  const LayerTable& table = lanes_->tables[t];
  std::vector<TablePart> pieces;
  for (const Box& box : table.spec->boxes()) {
    pieces.push_back({{}, box.interval(0), box.interval(1)});
    if (table.is_replicated)
      pieces.back().values = replicated_[t][0];
    else if (const LaneSlice* slice = lanes_->own_slice(table, box))
      pieces.back().values = blocks_[slice->lane].narrow(0, slice->first_row, slice->rows.length());
    else  // no rows
      pieces.back().values = at::empty(box.sizes, options(t));
  }
  return pieces;
}

Shards TableMemory::shards_of(size_t t) const {
  Shards shards;
  for (const TablePart& piece : pieces(t)) shards.push_back(piece.values.alias());
  return shards;
}

std::vector<at::Tensor> TableMemory::tables() const {
  std::vector<at::Tensor> tables;
  for (size_t t = 0; t < lanes_->tables.size(); ++t) {
    tables.push_back(wrap(lanes_->tables[t].spec, shards_of(t)));
    maybe_dtensor(tables.back())->set_memory(memories_[t]);
  }
  return tables;
}

void TableMemory::check(c10::ArrayRef<at::Tensor> tables) const {
  SW_CHECK_VALUE(tables.size() == lanes_->tables.size(),
                 "[{}] got {} tables, but the layer has {}. Give all, in their order.", kLayer, tables.size(),
                 lanes_->tables.size());
  for (size_t t = 0; t < tables.size(); ++t) {
    const auto* impl = maybe_dtensor(tables[t]);
    // Compares the TensorMemory, not the addresses of pieces, so that a rank without rows of the table comes to the same result as all others.
    SW_CHECK_VALUE(
        impl != nullptr && impl->spec() == lanes_->tables[t].spec && impl->known_memory() == memories_[t].get(),
        "[{}] the parameter of table {} is not the layer's own any more: lookups would read other memory. Write to it "
        "with copy_(), load_state_dict() without assign=True, or set_weights().",
        kLayer, lanes_->tables[t].name);
  }
}

}  // namespace shardwise
