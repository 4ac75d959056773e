#include "wrappers/distributed_embedding/table_lanes.h"

#include "wrappers/distributed_embedding/layer_name.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

namespace shardwise {
namespace {

bool comes_first(const Lane& lane, const Lane& other) {
  const auto bytes = c10::elementSize(lane.dtype), others = c10::elementSize(other.dtype);
  if (bytes != others) return bytes > others;
  return std::pair(lane.dtype, lane.width) < std::pair(other.dtype, other.width);
}

std::vector<Lane> lanes_of(const std::vector<TableConfig>& configs, const std::vector<TablePlan>& plans,
                           int64_t n_ranks) {
  std::vector<Lane> lanes;
  for (size_t t = 0; t < plans.size(); ++t) {
    if (plans[t].treatment == Treatment::kReplicated) continue;
    for (const TableSlice& slice : plans[t].slices)
      lanes.push_back({slice.columns.length(), table_dtype(configs[t].dtype), std::vector<int64_t>(n_ranks)});
  }
  std::ranges::sort(lanes, comes_first);
  const auto same = [](const Lane& lane, const Lane& other) {
    return lane.dtype == other.dtype && lane.width == other.width;
  };
  lanes.erase(std::ranges::unique(lanes, same).begin(), lanes.end());
  return lanes;
}

/// By rows over all ranks where that says it, else in pieces.
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
  TORCH_CHECK_TYPE(
      false, fmt::format("[{}] a table is of dtype {}. Use float32, float64, float16 or bfloat16.", kLayer, name));
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
                          const MeshPtr& mesh) {
  TORCH_CHECK_VALUE(mesh->ndim() == 1, fmt::format("[{}] the mesh {} has {} dims. Give one of 1 dim, as mesh[name].",
                                                   kLayer, to_string(*mesh), mesh->ndim()));
  TORCH_CHECK_VALUE(configs.size() == plans.size(),
                    fmt::format("[{}] the plan has {} tables, the layer {}. Plan the layer's tables.", kLayer,
                                plans.size(), configs.size()));
  TableLanes result{mesh, {}, lanes_of(configs, plans, mesh->size())};
  for (size_t t = 0; t < configs.size(); ++t) {
    const TableConfig& config = configs[t];
    const at::ScalarType dtype = table_dtype(config.dtype);
    for (const TableSlice& slice : plans[t].slices)
      TORCH_CHECK_VALUE(slice.rank >= 0 && slice.rank < mesh->size(),
                        fmt::format("[{}] the plan puts table {} on rank {}, the mesh {} has {} ranks. "
                                    "Plan for those.",
                                    kLayer, config.name, slice.rank, to_string(*mesh), mesh->size()));
    const Dims sizes{config.n_rows, config.n_columns};
    LayerTable table{config.name,
                     Spec::intern(mesh, sizes, {placement_of(config, plans[t], mesh)}, row_major_strides(sizes), dtype),
                     plans[t].treatment == Treatment::kReplicated,
                     {},
                     {}};
    if (!table.is_replicated) {
      for (const TableSlice& slice : plans[t].slices) table.parts.push_back(slice.columns);
      std::ranges::sort(table.parts, {}, &Interval::begin);
      table.parts.erase(std::ranges::unique(table.parts).begin(), table.parts.end());
      for (const TableSlice& slice : plans[t].slices) {
        const auto lane = std::ranges::find_if(result.lanes, [&](const Lane& each) {
          return each.dtype == dtype && each.width == slice.columns.length();
        });
        int64_t& height = lane->heights[static_cast<size_t>(slice.rank)];
        table.slices.push_back(
            {slice.rank, slice.rows, slice.columns, static_cast<size_t>(lane - result.lanes.begin()), height,
             static_cast<size_t>(std::ranges::find(table.parts, slice.columns) - table.parts.begin())});
        height += slice.rows.length();
      }
    }
    result.tables.push_back(std::move(table));
  }
  return result;
}

}  // namespace shardwise
