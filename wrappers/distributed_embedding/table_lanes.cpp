#include "wrappers/distributed_embedding/table_lanes.h"

#include "text/check.h"

#include <algorithm>
#include <tuple>

namespace shardwise {
namespace {

bool comes_first(const Lane& lane, const Lane& other) {
  const auto bytes = c10::elementSize(lane.dtype), others = c10::elementSize(other.dtype);
  if (bytes != others) return bytes > others;
  return std::tie(lane.dtype, lane.width, lane.stored) < std::tie(other.dtype, other.width, other.stored);
}

bool are_one(const Lane& lane, const Lane& other) {
  return lane.dtype == other.dtype && lane.width == other.width && lane.stored == other.stored;
}

/// The distinct column intervals of the slices, ascending.
std::vector<Interval> parts_of(const TablePlan& plan) {
  std::vector<Interval> parts;
  if (plan.treatment == Treatment::kReplicated) return parts;
  for (const TableSlice& slice : plan.slices) parts.push_back(slice.columns);
  std::ranges::sort(parts, {}, &Interval::begin);
  parts.erase(std::ranges::unique(parts).begin(), parts.end());
  return parts;
}

/// A row is composed of one slice from each part, so parts must not overlap.
void check_parts(const std::string& table, const std::vector<Interval>& parts) {
  Interval last{0, 0};
  for (const Interval& part : parts) {
    if (part.length() == 0) continue;
    SW_CHECK_VALUE(part.begin >= last.end,
                   "[{}] the plan slices table {} into columns {}:{} and {}:{}, which overlap. Give the slices of "
                   "columns the same bounds for all rows.",
                   kLayer, table, last.begin, last.end, part.begin, part.end);
    last = part;
  }
}

/// The lane of a slice, without its heights.
Lane lane_of_slice(const LayerTable& table, size_t t, const TableSlice& slice) {
  Lane lane{slice.columns.length(), table.spec->dtype(), {}};
  if (table.storage)
    lane.stored.emplace(t, static_cast<size_t>(std::ranges::find(table.parts, slice.columns) - table.parts.begin()));
  return lane;
}

std::vector<Lane> lanes_of(const std::vector<LayerTable>& tables, const std::vector<TablePlan>& plans,
                           int64_t n_ranks) {
  std::vector<Lane> lanes;
  for (size_t t = 0; t < plans.size(); ++t) {
    if (tables[t].is_replicated) continue;
    for (const TableSlice& slice : plans[t].slices) lanes.push_back(lane_of_slice(tables[t], t, slice));
  }
  std::ranges::sort(lanes, comes_first);
  lanes.erase(std::ranges::unique(lanes, are_one).begin(), lanes.end());
  for (Lane& lane : lanes) lane.heights.resize(static_cast<size_t>(n_ranks));
  return lanes;
}

void check_storages(const std::vector<LayerTable>& tables, const std::vector<TablePlan>& plans,
                    const TableStorages& storages) {
  for (const auto& [t, storage] : storages) {
    SW_CHECK_VALUE(t < tables.size(),
                   "[{}] storage is set for table {}, but there are only {} tables. Use an index below this number.",
                   kLayer, t, tables.size());
    const std::string& name = tables[t].name;
    SW_CHECK_VALUE(
        (storage.cache_rows > 0) != (storage.cache_bytes > 0) && storage.cache_rows >= 0 && storage.cache_bytes >= 0,
        "[{}] the storage of table {} has cache_rows {} and cache_bytes {}. Give one of them, above 0.", kLayer, name,
        storage.cache_rows, storage.cache_bytes);
    SW_CHECK_VALUE(
        !tables[t].is_replicated,
        "[{}] table {} is replicated, but has a storage. Leave it in memory, or lower data_parallel_threshold.", kLayer,
        name);
    std::vector<std::pair<int64_t, int64_t>> seen;  // rank, first column
    for (const TableSlice& slice : plans[t].slices) seen.emplace_back(slice.rank, slice.columns.begin);
    std::ranges::sort(seen);
    const auto twice = std::ranges::adjacent_find(seen);
    SW_CHECK_VALUE(twice == seen.end(),
                   "[{}] rank {} has two slices of the same columns of table {}, which lies in files. Plan one slice "
                   "of these columns per rank.",
                   kLayer, twice->first, name);
  }
}

/// Shard(0, sizes=...) if that describes the slices, else an EnumerableShard.
Placement placement_of(const TableConfig& config, const TablePlan& plan, const MeshPtr& mesh) {
  if (plan.treatment == Treatment::kReplicated) return Placement::replicate();
  const auto n_ranks = static_cast<size_t>(mesh->size());
  Dims heights(n_ranks, 0);
  int64_t next_row = 0, last_rank = -1;
  bool is_by_rows = true;
  std::vector<ShardMetadata> pieces;
  for (const TableSlice& slice : plan.slices) {
    is_by_rows &=
        slice.columns == Interval{0, config.n_columns} && slice.rank > last_rank && slice.rows.begin == next_row;
    last_rank = slice.rank;
    next_row = slice.rows.end;
    heights[static_cast<size_t>(slice.rank)] = slice.rows.length();
    pieces.push_back({{slice.rows.begin, slice.columns.begin},
                      {slice.rows.length(), slice.columns.length()},
                      mesh->grid().ranks[static_cast<size_t>(slice.rank)]});
  }
  return is_by_rows && plan.treatment == Treatment::kRowParallel ? Placement::shard(0, heights)
                                                                 : Placement::enumerable(std::move(pieces));
}

}  // namespace

at::ScalarType table_dtype(std::string_view name) {
  constexpr std::pair<std::string_view, at::ScalarType> kDtypes[] = {
      {"float32", at::kFloat}, {"float64", at::kDouble}, {"float16", at::kHalf}, {"bfloat16", at::kBFloat16}};
  for (const auto& [known, dtype] : kDtypes)
    if (known == name) return dtype;
  SW_CHECK_TYPE(false, "[{}] a table is of dtype {}. Use float32, float64, float16 or bfloat16.", kLayer, name);
}

const LaneSlice* TableLanes::own_slice(const LayerTable& table, const Box& box) const {
  const auto slice = std::ranges::find_if(table.slices, [&](const LaneSlice& each) {
    return each.rank == own_rank() && each.rows == box.interval(0) && each.columns == box.interval(1);
  });
  return slice == table.slices.end() ? nullptr : &*slice;
}

size_t TableLanes::lane_of(const LayerTable& table, size_t part) {
  return std::ranges::find(table.slices, part, &LaneSlice::part)->lane;
}

TableLanes TableLanes::of(const std::vector<TableConfig>& configs, const std::vector<TablePlan>& plans,
                          const MeshPtr& mesh, const TableStorages& storages) {
  SW_CHECK_VALUE(mesh->ndim() == 1, "[{}] the mesh {} has {} dims. Give one of 1 dim, as mesh[name].", kLayer,
                 to_string(*mesh), mesh->ndim());
  SW_CHECK_VALUE(configs.size() == plans.size(),
                 "[{}] the plan has {} tables, but the layer has {}. Plan the layer's tables.", kLayer, plans.size(),
                 configs.size());
  TableLanes result{mesh, {}, {}};
  for (size_t t = 0; t < configs.size(); ++t) {
    const TableConfig& config = configs[t];
    const at::ScalarType dtype = table_dtype(config.dtype);
    for (const TableSlice& slice : plans[t].slices)
      SW_CHECK_VALUE(slice.rank >= 0 && slice.rank < mesh->size(),
                     "[{}] the plan puts table {} on rank {}, but the mesh {} has {} ranks. Plan for this mesh.",
                     kLayer, config.name, slice.rank, to_string(*mesh), mesh->size());
    const Dims sizes{config.n_rows, config.n_columns};
    LayerTable table{config.name,
                     Spec::intern(mesh, sizes, {placement_of(config, plans[t], mesh)}, row_major_strides(sizes), dtype),
                     plans[t].treatment == Treatment::kReplicated,
                     {},
                     parts_of(plans[t])};
    check_parts(table.name, table.parts);
    if (const auto storage = storages.find(t); storage != storages.end()) table.storage = storage->second;
    result.tables.push_back(std::move(table));
  }
  check_storages(result.tables, plans, storages);
  result.lanes = lanes_of(result.tables, plans, mesh->size());
  for (size_t t = 0; t < configs.size(); ++t) {
    LayerTable& table = result.tables[t];
    if (table.is_replicated) continue;
    for (const TableSlice& slice : plans[t].slices) {
      const auto lane = std::ranges::find_if(
          result.lanes, [&, own = lane_of_slice(table, t, slice)](const Lane& each) { return are_one(each, own); });
      int64_t& height = lane->heights[static_cast<size_t>(slice.rank)];
      table.slices.push_back(
          {slice.rank, slice.rows, slice.columns, static_cast<size_t>(lane - result.lanes.begin()), height,
           static_cast<size_t>(std::ranges::find(table.parts, slice.columns) - table.parts.begin())});
      height += slice.rows.length();
    }
  }
  return result;
}

}  // namespace shardwise
