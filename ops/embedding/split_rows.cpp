#include "ops/embedding/split_rows.h"

#include "ops/support/planned_values.h"
#include "placements/placement_list.h"
#include "runtime/comm/collectives.h"
#include "runtime/comm/messages.h"
#include "text/check.h"

#include <ATen/ops/_unique2.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/full.h>
#include <ATen/ops/minimum.h>
#include <ATen/ops/searchsorted.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <limits>
#include <map>
#include <set>
#include <utility>

namespace shardwise {
namespace {

bool has_part_of_rows(const Spec& table, const ShardMetadata& piece) {
  return piece.sizes[0] > 0 && piece.sizes[1] > 0 && piece.sizes[1] < table.sizes()[1];
}

/// The positions in `sorted` (ascending rows) of the rows that lie in one of `intervals`.
at::Tensor places_within(const at::Tensor& sorted, const std::vector<Interval>& intervals) {
  std::vector<int64_t> bounds;
  for (const Interval& interval : intervals) bounds.insert(bounds.end(), {interval.begin, interval.end});
  const at::Tensor found = at::searchsorted(sorted, at::tensor(bounds, at::kLong).to(sorted.device())).cpu();
  const auto* place = found.const_data_ptr<int64_t>();
  const at::Tensor is_within = at::zeros(sorted.sizes(), sorted.options().dtype(at::kBool));
  for (size_t i = 0; i < bounds.size(); i += 2) is_within.narrow(0, place[i], place[i + 1] - place[i]).fill_(true);
  return is_within.nonzero().view(-1);
}

/// The numbers of the table's rows that groups of box `i` name, ascending. If they are on meta, rows that are spread evenly, on the CPU.
at::Tensor named_rows(const Spec& table, size_t i, const at::Tensor& rows) {
  const at::Tensor known = rows.is_meta() ? spread_rows(rows.numel(), table.boxes()[i].sizes[0]) : rows;
  return known + table.boxes()[i].offsets[0];
}

at::Tensor combined(const at::Tensor& a, const at::Tensor& b, Reduce reduce) {
  return reduce == Reduce::kMin ? at::minimum(a, b) : a + b;
}

/// Reduces numbers per row over all pieces that hold parts of the row.
class RowTotal {
 public:
  /// `rows`: the rows of each of this rank's boxes, ascending. `reduce`: kSum or kMin.
  RowTotal(const Spec& table, const std::vector<at::Tensor>& rows, Reduce reduce) : table_(table), reduce_(reduce) {
    if (table.layout().has_one_box_each() || rows.empty()) return;
    named_ = std::get<0>(at::_unique2(at::cat(rows)));
    for (const at::Tensor& of_box : rows)
      places_.push_back(at::searchsorted(named_, of_box).to(table.mesh()->device()));
    find_shared();
  }

  /// Replaces the numbers [rows, n] of each box by their totals. Collective over the mesh's members.
  void find(std::vector<at::Tensor>& numbers) const {
    if (!table_.layout().has_one_box_each()) return find_in_pieces(numbers);
    for (at::Tensor& of_box : numbers)
      for (const int64_t m : mesh_dims_splitting(table_.placements(), 1))
        all_reduce(*table_.mesh()->group(m), of_box, reduce_);
  }

 private:
  struct Shared {
    int64_t rank;
    at::Tensor places;  // positions in named_ of the rows that `rank` also has parts of
  };

  void find_shared() {
    std::map<int64_t, std::vector<Interval>> rows_of;
    for (const ShardMetadata& piece : table_.layout().pieces())
      if (has_part_of_rows(table_, piece)) rows_of[piece.rank].push_back(piece.box().interval(0));
    const int64_t self = table_.mesh()->rank();
    const auto own = rows_of.find(self);
    if (own == rows_of.end()) return;
    for (const auto& [rank, rows] : rows_of) {
      if (rank == self) continue;
      std::vector<Interval> both;
      for (const Interval& theirs : rows)
        for (const Interval& ours : own->second) {
          const Interval common{std::max(theirs.begin, ours.begin), std::min(theirs.end, ours.end)};
          if (common.begin < common.end) both.push_back(common);
        }
      if (both.empty()) continue;
      const at::Tensor places = places_within(named_, both);
      if (places.numel() > 0) shared_.push_back({rank, places.to(table_.mesh()->device())});
    }
  }

  /// Adds up in the order of ranks, so that all ranks that share a row get the same total.
  void find_in_pieces(std::vector<at::Tensor>& numbers) const {
    const Group& group = *table_.mesh()->group();
    std::vector<Message> sends, receives;
    at::Tensor own;
    if (named_.defined() && !numbers.empty()) {
      own = nothing(numbers[0]);
      for (size_t i = 0; i < numbers.size(); ++i) take_in(own, places_[i], numbers[i]);
    }
    for (const Shared& with : shared_) {
      sends.push_back({with.rank, own.index_select(0, with.places)});
      receives.push_back({with.rank, at::empty_like(sends.back().tensor)});
    }
    std::vector<at::Tensor> arrived;
    for (const Message& message : receives) arrived.push_back(message.tensor);
    exchange(group, table_.mesh()->device(), std::move(sends), std::move(receives))->wait();
    if (!own.defined()) return;
    at::Tensor total = nothing(own);
    bool has_own = false;
    const auto take_in_own = [&] {
      if (!std::exchange(has_own, true)) total = combined(total, own, reduce_);
    };
    for (size_t i = 0; i < shared_.size(); ++i) {
      if (shared_[i].rank > table_.mesh()->rank()) take_in_own();
      take_in(total, shared_[i].places, arrived[i]);
    }
    take_in_own();
    for (size_t i = 0; i < numbers.size(); ++i) numbers[i] = total.index_select(0, places_[i]);
  }

  /// The neutral element of the reduction, for each of the rows.
  at::Tensor nothing(const at::Tensor& like) const {
    const double value = reduce_ == Reduce::kMin ? std::numeric_limits<double>::infinity() : 0;
    return at::full({named_.numel(), like.size(1)}, value, like.options());
  }
  /// Pre: no place comes twice.
  void take_in(const at::Tensor& totals, const at::Tensor& places, const at::Tensor& numbers) const {
    totals.index_copy_(0, places, combined(totals.index_select(0, places), numbers, reduce_));
  }

  const Spec& table_;
  Reduce reduce_;
  at::Tensor named_;                // the rows of all boxes of this rank, ascending
  std::vector<at::Tensor> places_;  // positions in named_ of each box's rows
  std::vector<Shared> shared_;      // by rank
};

/// Relates a piece of the numbers per row to the box of the table, on this rank, that contains its rows.
struct KeptRows {
  size_t box;
  at::Tensor groups;
  at::Tensor rows;  // the same rows, counted from the first row of the piece of numbers
};

KeptRows kept_rows(const Spec& table, Interval kept, c10::ArrayRef<BoxGroups> boxes) {
  size_t box = 0;
  while (table.boxes()[box].sizes[1] == 0 || table.boxes()[box].interval(0).begin > kept.begin ||
         table.boxes()[box].interval(0).end < kept.end)
    ++box;
  const c10::Device device = table.mesh()->device();
  const at::Tensor rows = named_rows(table, box, boxes[box].groups.rows);
  const at::Tensor places = places_within(rows, {kept});
  return {box, places.to(device), (rows.index_select(0, places) - kept.begin).to(device)};
}

/// One step of an optimizer that needs sums over whole rows, on a table whose pieces have parts of rows.
class SplitUpdate {
 public:
  SplitUpdate(const RowOptimizer& optimizer, const Spec& table, c10::ArrayRef<at::Tensor> pieces,
              c10::ArrayRef<BoxGroups> boxes)
      : table_(table), boxes_(boxes), total_(table, all_rows(table, boxes), Reduce::kSum), sums_(boxes.size()) {
    for (size_t i = 0; i < boxes.size(); ++i) updated_.push_back(optimizer.updated_rows(pieces[i], i));
    if (!kernels::is_row_wise(optimizer.options().method) || table.layout().has_one_box_each()) return;
    numbers_ = optimizer.state().back();
  }

  void find_mean_squares() {
    std::vector<at::Tensor> sums;
    for (size_t i = 0; i < boxes_.size(); ++i)
      sums.push_back(grad_squares(boxes_[i].grads, boxes_[i].groups, updated_[i].rows, updated_[i].update.l2));
    if (numbers_.defined()) add_numbers(sums);
    total_.find(sums);
    for (size_t i = 0; i < boxes_.size(); ++i) {
      sums_[i].mean_squares = (sums[i].select(1, 0) / static_cast<double>(table_.sizes()[1])).contiguous();
      if (!numbers_.defined()) continue;
      updated_[i].state.back() = sums[i].select(1, 1).to(numbers_.scalar_type()).contiguous();
      updated_[i].rows_are_groups = true;
    }
  }

  void find_ratios() {
    std::vector<at::Tensor> squares;
    for (size_t i = 0; i < boxes_.size(); ++i)
      squares.push_back(lamb_squares(updated_[i], boxes_[i].grads, boxes_[i].groups, sums_[i].mean_squares));
    total_.find(squares);
    for (size_t i = 0; i < boxes_.size(); ++i) {
      const at::Tensor of_row = squares[i].select(1, 0), of_step = squares[i].select(1, 1);
      const at::Tensor are_positive = of_row.gt(0).logical_and_(of_step.gt(0));
      sums_[i].ratios = at::where(are_positive, of_row.div(of_step).sqrt_(), 1.0).contiguous();
    }
  }

  void apply() {
    for (size_t i = 0; i < boxes_.size(); ++i) update_rows(updated_[i], boxes_[i].grads, boxes_[i].groups, sums_[i]);
    if (numbers_.defined())
      for_each_kept([&](const at::Tensor& piece, const KeptRows& kept) {
        piece.index_copy_(0, kept.rows, updated_[kept.box].state.back().index_select(0, kept.groups));
      });
  }

 private:
  static std::vector<at::Tensor> all_rows(const Spec& table, c10::ArrayRef<BoxGroups> boxes) {
    std::vector<at::Tensor> rows;
    for (size_t i = 0; i < boxes.size(); ++i) rows.push_back(named_rows(table, i, boxes[i].groups.rows));
    return rows;
  }

  template <class Use>
  void for_each_kept(const Use& use) const {
    const Spec& kept = *spec_of(numbers_);
    for (size_t i = 0; i < kept.boxes().size(); ++i)
      if (kept.boxes()[i].sizes[0] > 0)
        use(maybe_dtensor(numbers_)->shards()[i], kept_rows(table_, kept.boxes()[i].interval(0), boxes_));
  }

  /// Adds a column to `sums` with the number of each row, or zero if the piece does not keep the number.
  void add_numbers(std::vector<at::Tensor>& sums) const {
    for (at::Tensor& of_box : sums) of_box = at::cat({of_box, at::zeros_like(of_box)}, 1);
    for_each_kept([&](const at::Tensor& piece, const KeptRows& kept) {
      sums[kept.box].select(1, 1).index_copy_(0, kept.groups, piece.index_select(0, kept.rows).to(at::kDouble));
    });
  }

  const Spec& table_;
  c10::ArrayRef<BoxGroups> boxes_;
  RowTotal total_;
  std::vector<UpdatedRows> updated_;
  std::vector<RowSums> sums_;
  at::Tensor numbers_;  // the numbers per row, for a row-wise optimizer and a table in pieces
};

}  // namespace

void check_table(const char* op, const at::Tensor& table) {
  SW_CHECK_TYPE(
      is_dtensor(table),
      "[{}] got a torch.Tensor of shape [{}] as the table. Wrap it with distribute_tensor(x, mesh, [Replicate()]).", op,
      fmt::join(table.sizes(), ", "));
  SW_CHECK_VALUE(table.dim() == 2, "[{}] the table of shape [{}] has {} dims. Give [rows, columns].", op,
                 fmt::join(table.sizes(), ", "), table.dim());
  SW_CHECK_TYPE(at::isFloatingType(table.scalar_type()),
                "[{}] the table is {}. Give float32, float64, bfloat16 or float16.", op,
                c10::toString(table.scalar_type()));
  SW_CHECK_VALUE(!spec_of(table)->layout().has_terms(),
                 "[{}] the table is laid out as {}: it is Partial, so no rank has whole rows. Reduce it first with "
                 "redistribute().",
                 op, to_string(spec_of(table)->placements()));
}

bool splits_rows(const Spec& table) {
  if (table.layout().has_one_box_each()) return table.layout().splits(1);
  return std::ranges::any_of(table.layout().pieces(),
                             [&](const ShardMetadata& piece) { return has_part_of_rows(table, piece); });
}

void reduce_split_rows(const Spec& table, std::vector<at::Tensor>& numbers, Reduce reduce) {
  if (!table.is_member() || !splits_rows(table)) return;
  std::vector<at::Tensor> rows;
  for (size_t i = 0; i < numbers.size(); ++i) {
    const Interval of_box = table.boxes()[i].interval(0);
    rows.push_back(at::arange(of_box.begin, of_box.end, numbers[i].options().dtype(at::kLong)));
  }
  RowTotal(table, rows, reduce).find(numbers);
}

Placements placements_of_rows(const Spec& table) {
  if (table.layout().has_one_box_each()) return whole_along(table.placements(), 1);
  std::vector<ShardMetadata> pieces = table.layout().pieces();
  std::erase_if(pieces, [](const ShardMetadata& piece) { return piece.sizes[1] == 0; });
  if (pieces.empty()) pieces.push_back({{0, 0}, Dims(table.sizes()), table.layout().grid().ranks[0]});
  std::set<int64_t> bounds;  // between two of them, each piece has all rows or none
  for (const ShardMetadata& piece : pieces)
    for (const int64_t bound : {piece.offsets[0], piece.offsets[0] + piece.sizes[0]}) bounds.insert(bound);
  std::vector<ShardMetadata> kept;
  const ShardMetadata* keeper = nullptr;
  for (auto begin = bounds.begin(), end = std::next(begin); end != bounds.end(); begin = end++) {
    const auto first = std::ranges::find_if(pieces, [&](const ShardMetadata& piece) {
      return piece.offsets[0] <= *begin && *end <= piece.offsets[0] + piece.sizes[0];
    });
    if (&*first != keeper) kept.push_back({{*begin}, {0}, first->rank});
    kept.back().sizes[0] += *end - *begin;
    keeper = &*first;
  }
  return {Placement::enumerable(std::move(kept))};
}

int64_t first_unbounded_row(const Spec& table, const std::vector<at::Tensor>& numbers) {
  int64_t first = table.sizes()[0];
  for (size_t i = 0; i < numbers.size(); ++i) {
    if (table.boxes()[i].sizes[1] == 0) continue;
    const at::Tensor bad = numbers[i].isfinite().logical_not().any(1).nonzero();
    if (bad.numel() > 0) first = std::min(first, table.boxes()[i].offsets[0] + bad[0].item<int64_t>());
  }
  if (!table.is_member()) return first;
  const at::Tensor of_all = at::full({1}, first, at::TensorOptions().dtype(at::kLong).device(table.mesh()->device()));
  all_reduce(*table.mesh()->group(), of_all, Reduce::kMin);
  return of_all.item<int64_t>();
}

bool needs_whole_rows(const RowOptimizer& optimizer, const Spec& table) {
  const auto method = optimizer.options().method;
  return table.sizes()[1] > 0 && (kernels::is_row_wise(method) || kernels::is_lamb(method)) && splits_rows(table);
}

void update_boxes(const RowOptimizer& optimizer, const Spec& table, c10::ArrayRef<at::Tensor> pieces,
                  c10::ArrayRef<BoxGroups> boxes) {
  if (!table.is_member()) return;
  if (needs_whole_rows(optimizer, table)) {
    SplitUpdate update(optimizer, table, pieces, boxes);
    if (kernels::is_row_wise(optimizer.options().method)) update.find_mean_squares();
    if (kernels::is_lamb(optimizer.options().method)) update.find_ratios();
    return update.apply();
  }
  for (size_t i = 0; i < boxes.size(); ++i)
    update_rows(optimizer.updated_rows(pieces[i], i), boxes[i].grads, boxes[i].groups);
}

}  // namespace shardwise
