#include "ops/embedding/row_route.h"

#include "runtime/comm/collectives.h"
#include "runtime/comm/messages.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <map>
#include <numeric>

namespace shardwise {
namespace {

/// The coordinates of `rank` are this rank's but along `asks`.
bool is_partner(const DeviceMesh& mesh, int64_t rank, const std::vector<bool>& asks) {
  const auto coord = mesh.grid().coord_of(rank);
  for (size_t m = 0; m < asks.size(); ++m)
    if (!asks[m] && (*coord)[m] != (*mesh.coord())[m]) return false;
  return true;
}

/// The same for ranks that have the same ids, where these are cut along `cuts`.
Dims place_along(const DeviceMesh& mesh, int64_t rank, const std::vector<bool>& cuts) {
  Dims place = *mesh.grid().coord_of(rank);
  for (size_t m = 0; m < cuts.size(); ++m)
    if (!cuts[m]) place[m] = 0;
  return place;
}

/// Along one dim its own group will do, unless what is wrong with the ids of one line of ranks must be told to all.
GroupPtr group_along(const DeviceMesh& mesh, const std::vector<bool>& asks, bool tells_all) {
  const auto first = std::ranges::find(asks, true);
  const bool is_only = std::count(asks.begin(), asks.end(), true) == 1;
  return is_only && !tells_all ? mesh.group(first - asks.begin()) : mesh.group();
}

at::Tensor part(const at::Tensor& tensor, int64_t begin, int64_t end) { return tensor.narrow(0, begin, end - begin); }

}  // namespace

RowRoute::RowRoute(const SpecPtr& table, std::vector<bool> asks, const at::Tensor& ids, GroupPtr group)
    : table_(table),
      asks_along_(std::move(asks)),
      group_(std::move(group)),
      groups_(group_ids(ids, 0, table->sizes()[0], /*skipped=*/-1, /*with_group_of=*/true)) {
  find_asks();
}

std::shared_ptr<const RowRoute> RowRoute::make(const char* op, const SpecPtr& table, std::vector<bool> asks,
                                               const at::Tensor& ids, const std::vector<bool>& cuts, bool checks_ids) {
  bool are_cut_elsewhere = false;
  for (size_t m = 0; m < cuts.size(); ++m) are_cut_elsewhere |= cuts[m] && !asks[m];
  GroupPtr group = group_along(*table->mesh(), asks, are_cut_elsewhere);
  std::shared_ptr<RowRoute> route(new RowRoute(table, std::move(asks), ids, std::move(group)));
  route->exchange_counts(op, ids, checks_ids);
  route->exchange_ids();
  return route;
}

std::shared_ptr<const RowRoute> RowRoute::make_known(const char* op, const SpecPtr& table, std::vector<bool> asks,
                                                     const at::Tensor& ids, const std::vector<bool>& cuts,
                                                     bool checks_ids) {
  GroupPtr group = group_along(*table->mesh(), asks, checks_ids);
  std::shared_ptr<RowRoute> route(new RowRoute(table, std::move(asks), ids, std::move(group)));
  if (checks_ids) route->check_equal(op, ids, cuts);
  route->is_known_ = true;
  for (size_t box = 0; box < table->boxes().size(); ++box) {
    const Ask& own = route->own_ask(box);
    route->ordered_.push_back(part(route->groups_.rows, own.begin, own.end));
    for (const int64_t rank : route->group_->ranks)
      if (is_partner(*table->mesh(), rank, route->asks_along_)) route->orders_.push_back({rank, box, 0, own.n()});
  }
  return route;
}

void RowRoute::find_asks() {
  const at::Tensor rows = groups_.rows.cpu();
  const auto* begin = rows.const_data_ptr<int64_t>();
  const auto* end = begin + rows.numel();
  const auto first_from = [&](int64_t row) { return std::lower_bound(begin, end, row) - begin; };
  columns_ = {table_->sizes()[1], 0};
  for (const int64_t rank : group_->ranks) {
    if (!is_partner(*table_->mesh(), rank, asks_along_)) continue;
    for (const Box& box : table_->layout().boxes(rank)) {
      const Interval in_box = box.interval(0);
      asks_.push_back({rank, box, first_from(in_box.begin), first_from(in_box.end)});
      if (box.sizes[1] == 0) continue;  // it is told of ids all the same: it may keep a number per row
      columns_ = {std::min(columns_.begin, box.interval(1).begin), std::max(columns_.end, box.interval(1).end)};
    }
  }
  if (columns_.begin > columns_.end) columns_ = {0, 0};
  drop_unowned();
}

/// Rows of ranks that differ along other mesh dims too are none of ours to find.
void RowRoute::drop_unowned() {
  std::vector<std::pair<int64_t, int64_t>> owned;
  for (const Ask& ask : asks_) owned.emplace_back(ask.begin, ask.end);
  std::ranges::sort(owned);
  at::Tensor is_unowned;
  int64_t next = 0;
  const auto drop = [&](int64_t begin, int64_t end) {
    if (begin >= end) return;
    if (!is_unowned.defined()) is_unowned = at::zeros({groups_.n()}, groups_.rows.options().dtype(at::kBool));
    is_unowned.narrow(0, begin, end - begin).fill_(true);
  };
  for (const auto& [begin, end] : owned) {
    drop(next, begin);
    next = std::max(next, end);
  }
  drop(next, groups_.n());
  if (is_unowned.defined())
    groups_.group_of.masked_fill_(
        is_unowned.index_select(0, groups_.group_of.clamp_min(0)).logical_and_(groups_.group_of.ge(0)), -1);
}

/// Where all ids are in groups, these ascend.
IdBounds RowRoute::bounds_of(const at::Tensor& ids) const {
  IdBounds bounds;
  const int64_t n = groups_.n();
  if (groups_.starts[n].item<int64_t>() < ids.numel())
    bounds.add(ids);
  else if (n > 0)
    bounds.add(groups_.rows[0].item<int64_t>(), groups_.rows[n - 1].item<int64_t>());
  return bounds;
}

/// Ranks that have unlike ids would wait for rows that nobody sends. Ids that are cut along `cuts` alone are equal elsewhere.
void RowRoute::check_equal(const char* op, const at::Tensor& ids, const std::vector<bool>& cuts) const {
  IdBounds bounds = bounds_of(ids);
  const at::Tensor own = at::tensor({bounds.lowest, bounds.highest, digest_of_ids(ids)}, at::kLong);
  const at::Tensor sent = own.repeat({group_->size()}).to(groups_.rows.device()), arrived = at::empty_like(sent);
  const std::vector<int64_t> splits(group_->size(), own.numel());
  all_to_all(*group_, arrived, sent, splits, splits);
  const at::Tensor all = arrived.cpu().view({group_->size(), own.numel()});
  const auto summary = all.accessor<int64_t, 2>();
  std::map<Dims, int64_t> first_at;
  for (int64_t i = 0; i < group_->size(); ++i) {
    const int64_t rank = group_->ranks[i];
    bounds.add(summary[i][0], summary[i][1]);
    const int64_t first = first_at.try_emplace(place_along(*table_->mesh(), rank, cuts), i).first->second;
    TORCH_CHECK_VALUE(summary[i][2] == summary[first][2],
                      fmt::format("[{}] ids are replicated over ranks {} and {}, but differ there. Give all ranks the "
                                  "same (distribute_tensor sends those of one), or cut them.",
                                  op, group_->ranks[first], rank));
  }
  bounds.check(op, table_->sizes()[0]);
}

void RowRoute::exchange_counts(const char* op, const at::Tensor& ids, bool checks_ids) {
  const size_t n_own_boxes = table_->boxes().size();
  IdBounds bounds;
  if (checks_ids) bounds = bounds_of(ids);
  std::vector<int64_t> sent, send_splits, receive_splits;
  for (const int64_t rank : group_->ranks) {
    const size_t before = sent.size();
    if (checks_ids) sent.insert(sent.end(), {bounds.lowest, bounds.highest});
    for (const Ask& ask : asks_)
      if (ask.rank == rank) sent.push_back(ask.n());
    send_splits.push_back(static_cast<int64_t>(sent.size() - before));
    const bool asks_us = is_partner(*table_->mesh(), rank, asks_along_);
    receive_splits.push_back((checks_ids ? 2 : 0) + (asks_us ? static_cast<int64_t>(n_own_boxes) : 0));
  }
  const auto options = at::TensorOptions().dtype(at::kLong);
  const int64_t n_received = std::accumulate(receive_splits.begin(), receive_splits.end(), int64_t{0});
  const at::Tensor device_counts = at::tensor(sent, options).to(groups_.rows.device());
  const at::Tensor arrived = at::empty({n_received}, device_counts.options());
  all_to_all(*group_, arrived, device_counts, receive_splits, send_splits);
  const at::Tensor on_cpu = arrived.cpu();
  const auto* next = on_cpu.const_data_ptr<int64_t>();
  std::vector<int64_t> n_ordered(n_own_boxes, 0);
  for (size_t member = 0; member < receive_splits.size(); ++member) {
    const auto* end = next + receive_splits[member];
    if (checks_ids) {
      bounds.add(next[0], next[1]);
      next += 2;
    }
    for (size_t box = 0; next != end; ++next, ++box) {
      const int64_t begin = n_ordered[box];
      n_ordered[box] += *next;
      orders_.push_back({group_->ranks[member], box, begin, n_ordered[box]});
    }
  }
  if (checks_ids) bounds.check(op, table_->sizes()[0]);
  for (const int64_t n : n_ordered) ordered_.push_back(at::empty({n}, groups_.rows.options().dtype(wire_type())));
}

at::ScalarType RowRoute::wire_type() const {
  return table_->sizes()[0] <= std::numeric_limits<int32_t>::max() ? at::kInt : at::kLong;
}

const RowRoute::Ask& RowRoute::own_ask(size_t box) const {
  const int64_t self = table_->mesh()->rank();
  return std::ranges::find_if(asks_, [&](const Ask& ask) { return ask.rank == self; })[static_cast<int64_t>(box)];
}

void RowRoute::for_each_own(const std::function<void(const Ask&, const Order&)>& use) const {
  for (const Order& order : orders_)
    if (order.rank == table_->mesh()->rank() && order.n() > 0) use(own_ask(order.box), order);
}

void RowRoute::exchange_ids() {
  const at::Tensor wanted = groups_.rows.to(wire_type());
  std::vector<Message> sends, receives;
  for (const Ask& ask : asks_)
    if (ask.rank != table_->mesh()->rank() && ask.n() > 0)
      sends.push_back({ask.rank, part(wanted, ask.begin, ask.end)});
  for (const Order& order : orders_)
    if (order.rank != table_->mesh()->rank() && order.n() > 0)
      receives.push_back({order.rank, part(ordered_[order.box], order.begin, order.end)});
  const auto messages = exchange(*group_, std::move(sends), std::move(receives));
  for_each_own([&](const Ask& ask, const Order& order) {
    part(ordered_[order.box], order.begin, order.end).copy_(part(wanted, ask.begin, ask.end));
  });
  messages->wait();
}

at::Tensor RowRoute::place_of(const Ask& ask, const at::Tensor& rows) const {
  return part(rows, ask.begin, ask.end).narrow(1, column_of(ask.box), ask.box.sizes[1]);
}

void RowRoute::look_up_own(const at::Tensor& rows, c10::ArrayRef<at::Tensor> pieces) const {
  for_each_own([&](const Ask& ask, const Order& order) {
    lookup_rows_into(place_of(ask, rows), pieces[order.box], part(ordered_[order.box], order.begin, order.end),
                     ask.box.offsets[0]);
  });
}

at::Tensor RowRoute::fetch(c10::ArrayRef<at::Tensor> pieces) const {
  const auto options = at::TensorOptions().dtype(table_->dtype()).device(groups_.rows.device());
  const int64_t self = table_->mesh()->rank();
  const at::Tensor rows = at::empty({groups_.n(), columns_.length()}, options);
  std::vector<Message> sends, receives;
  std::vector<std::pair<at::Tensor, at::Tensor>> bands;  // what arrives apart, and its place
  if (is_known_) look_up_own(rows, pieces);              // all are sent the same
  for (const Order& order : orders_) {
    const Box& box = table_->boxes()[order.box];
    if (order.rank == self || order.n() == 0 || box.sizes[1] == 0) continue;
    if (is_known_) {
      sends.push_back({order.rank, place_of(own_ask(order.box), rows).contiguous()});
      continue;
    }
    const at::Tensor found = at::empty({order.n(), box.sizes[1]}, options);
    sends.push_back({order.rank, found, [=, this, piece = pieces[order.box]] {
                       lookup_rows_into(found, piece, part(ordered_[order.box], order.begin, order.end),
                                        box.offsets[0]);
                     }});
  }
  for (const Ask& ask : asks_) {
    if (ask.rank == self || ask.n() == 0 || ask.box.sizes[1] == 0) continue;
    at::Tensor place = place_of(ask, rows);
    if (!spans(ask.box)) {
      bands.emplace_back(at::empty(place.sizes(), options), place);
      place = bands.back().first;
    }
    receives.push_back({ask.rank, place});
  }
  const auto messages = exchange(*group_, std::move(sends), std::move(receives));
  if (!is_known_) look_up_own(rows, pieces);
  messages->wait();
  for (const auto& [values, place] : bands) place.copy_(values);
  return rows;
}

std::vector<BoxGrads> RowRoute::give(const at::Tensor& sums) const {
  std::vector<BoxGrads> given;
  for (size_t box = 0; box < ordered_.size(); ++box)
    given.push_back(
        {ordered_[box], {at::empty({ordered_[box].numel(), table_->boxes()[box].sizes[1]}, sums.options())}});
  const auto band_of = [&](const Ask& ask) {
    return part(sums, ask.begin, ask.end).narrow(1, column_of(ask.box), ask.box.sizes[1]);
  };
  const auto place_of = [&](const Order& order) { return part(given[order.box].grads.values, order.begin, order.end); };
  std::vector<Message> sends, receives;
  for (const Ask& ask : asks_)
    if (ask.rank != table_->mesh()->rank() && ask.n() > 0 && ask.box.sizes[1] > 0)
      sends.push_back({ask.rank, band_of(ask).contiguous()});
  for (const Order& order : orders_)
    if (order.rank != table_->mesh()->rank() && order.n() > 0 && table_->boxes()[order.box].sizes[1] > 0)
      receives.push_back({order.rank, place_of(order)});
  const auto messages = exchange(*group_, std::move(sends), std::move(receives));
  for_each_own([&](const Ask& ask, const Order& order) { place_of(order).copy_(band_of(ask)); });
  messages->wait();
  return given;
}

}  // namespace shardwise
