#include "ops/embedding/row_exchange.h"

#include "ops/embedding/packed_rows.h"
#include "ops/support/planned_values.h"
#include "runtime/comm/agreement.h"
#include "runtime/comm/messages.h"
#include "text/check.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/tensor.h>

#include <algorithm>
#include <limits>
#include <map>

namespace shardwise {
namespace {

/// True if the coordinates of `rank` differ from this rank's along `along` only.
bool is_partner(const DeviceMesh& mesh, int64_t rank, const std::vector<bool>& along) {
  const auto coord = mesh.grid().coord_of(rank);
  for (size_t m = 0; m < along.size(); ++m)
    if (!along[m] && (*coord)[m] != (*mesh.coord())[m]) return false;
  return true;
}

/// A key that is equal for ranks that must have the same ids.
Dims place_of_ids(const DeviceMesh& mesh, int64_t rank, const Spec& all_ids) {
  Dims place = *mesh.grid().coord_of(rank);
  for (size_t m = 0; m < place.size(); ++m)
    if (!all_ids.placements()[m].divides()) place[m] = 0;
  return place;
}

/// The group of the only mesh dim in `along`, if there is one and not all ranks of the mesh must learn of bad ids; else the whole mesh.
GroupPtr group_along(const DeviceMesh& mesh, const std::vector<bool>& along, bool tells_all) {
  const auto first = std::ranges::find(along, true);
  const bool is_only = std::count(along.begin(), along.end(), true) == 1;
  return is_only && !tells_all ? mesh.group(first - along.begin()) : mesh.group();
}

at::Tensor part(const at::Tensor& tensor, int64_t begin, int64_t end) { return tensor.narrow(0, begin, end - begin); }

}  // namespace

RowExchange::RowExchange(const SpecPtr& table, std::vector<bool> along, const at::Tensor& ids, GroupPtr group)
    : table_(table),
      along_(std::move(along)),
      group_(std::move(group)),
      groups_(group_ids(ids, 0, table->sizes()[0], /*skipped=*/-1, /*with_group_of=*/true)) {
  find_requests();
}

RowExchange RowExchange::make(const char* op, const SpecPtr& table, std::vector<bool> along, const at::Tensor& ids,
                              const Spec& all_ids, bool checks_ids) {
  bool are_sharded_elsewhere = false;
  for (size_t m = 0; m < along.size(); ++m) are_sharded_elsewhere |= all_ids.placements()[m].divides() && !along[m];
  GroupPtr group = group_along(*table->mesh(), along, are_sharded_elsewhere);
  RowExchange result(table, std::move(along), ids, std::move(group));
  result.exchange_counts(op, ids, all_ids, checks_ids);
  result.exchange_ids();
  return result;
}

RowExchange RowExchange::make_of_equal_ids(const SpecPtr& table, std::vector<bool> along, const at::Tensor& ids) {
  GroupPtr group = group_along(*table->mesh(), along, /*tells_all=*/false);
  RowExchange result(table, std::move(along), ids, std::move(group));
  result.ids_are_equal_ = true;
  for (size_t box = 0; box < table->boxes().size(); ++box) {
    const Request& own = result.own_request(box);
    result.incoming_ids_.push_back(part(result.groups_.rows, own.begin, own.end));
    for (const int64_t rank : result.group_->ranks)
      if (is_partner(*table->mesh(), rank, result.along_)) result.incoming_.push_back({rank, box, 0, own.n()});
  }
  return result;
}

RowExchange RowExchange::make_of_parts(const SpecPtr& table, std::vector<bool> along, const at::Tensor& ids,
                                       c10::ArrayRef<IdGroups> own, const PartOf& part_of) {
  GroupPtr group = group_along(*table->mesh(), along, /*tells_all=*/false);
  RowExchange result(table, std::move(along), ids, std::move(group));
  for (size_t box = 0; box < own.size(); ++box) {
    std::vector<at::Tensor> places;
    int64_t begin = 0;
    const Interval rows_of_box = table->boxes()[box].interval(0);
    for (const int64_t rank : result.group_->ranks) {
      if (!is_partner(*table->mesh(), rank, result.along_)) continue;
      const at::Tensor part = part_of(rank, own[box].group_of);
      places.push_back(
          part.is_meta()
              ? group_ids(part, rows_of_box.begin, rows_of_box.length(), -1, false, TableOfIds{table->sizes()[0]}).rows
              : group_ids(part, 0, own[box].n()).rows);
      const int64_t end = begin + places.back().numel();
      result.incoming_.push_back({rank, box, begin, end});
      begin = end;
    }
    result.incoming_places_.push_back(at::cat(places));
    const at::Tensor& of_box = result.incoming_places_[box];
    const at::Tensor rows = of_box.is_meta() ? at::empty_like(of_box) : own[box].rows.index_select(0, of_box);
    result.incoming_ids_.push_back(rows.add_(rows_of_box.begin));
  }
  return result;
}

void RowExchange::find_requests() {
  const bool is_planned = groups_.rows.is_meta();
  if (is_planned) note_planned(*table_);
  const at::Tensor rows = is_planned ? at::empty({0}, at::kLong) : groups_.rows.cpu();
  const auto* begin = rows.const_data_ptr<int64_t>();
  const auto* end = begin + rows.numel();
  std::optional<PlannedIds> planned;
  if (is_planned) planned.emplace(groups_.order.numel(), table_->sizes()[0]);
  const auto first_from = [&](int64_t row) -> int64_t {
    return planned ? planned->rows_below(row) : std::lower_bound(begin, end, row) - begin;
  };
  columns_ = {table_->sizes()[1], 0};
  for (const int64_t rank : group_->ranks) {
    if (!is_partner(*table_->mesh(), rank, along_)) continue;
    for (const Box& box : table_->layout().boxes(rank)) {
      const Interval in_box = box.interval(0);
      requests_.push_back({rank, box, first_from(in_box.begin), first_from(in_box.end)});
      if (box.sizes[1] == 0) continue;  // ids are still sent there: the rank may keep optimizer state per row
      columns_ = {std::min(columns_.begin, box.interval(1).begin), std::max(columns_.end, box.interval(1).end)};
    }
  }
  if (columns_.begin > columns_.end) columns_ = {0, 0};
  drop_unowned();
}

/// Marks ids of rows that no partner owns. Ranks that differ along other mesh dims look them up.
void RowExchange::drop_unowned() {
  if (groups_.rows.is_meta()) return;
  if (std::ranges::any_of(requests_, [&](const Request& each) { return each.begin == 0 && each.end == groups_.n(); }))
    return;
  std::vector<uint8_t> is_unowned(static_cast<size_t>(groups_.n()), 1);
  for (const Request& request : requests_) std::fill_n(is_unowned.begin() + request.begin, request.n(), 0);
  if (std::ranges::find(is_unowned, 1) == is_unowned.end()) return;
  const at::Tensor groups = at::tensor(is_unowned, at::kByte).to(groups_.rows.device(), at::kBool),
                   &group_of = groups_.group_of;
  group_of.masked_fill_(groups.index_select(0, group_of.clamp_min(0)).logical_and_(group_of.ge(0)), -1);
}

/// Reads the bounds from the groups, whose rows ascend, if all ids are in groups.
IdBounds RowExchange::bounds_of(const at::Tensor& ids) const {
  IdBounds bounds;
  const int64_t n = groups_.n();
  if (ids.is_meta()) return bounds;
  if (groups_.starts[n].item<int64_t>() < ids.numel())
    bounds.add(ids);
  else if (n > 0)
    bounds.add(groups_.rows[0].item<int64_t>(), groups_.rows[n - 1].item<int64_t>());
  return bounds;
}

/// Without this check, ranks whose ids differ would wait for rows that no rank sends. Compares each rank's ids with the ids of the first rank that
/// must have the same.
void RowExchange::check_equal(const char* op, const Spec& table, const at::Tensor& ids, const Spec& all_ids) {
  const Group& group = *table.mesh()->group();
  IdBounds bounds;
  bounds.add(ids);
  const auto summary = gather_alike(group, "compare ids", {bounds.lowest, bounds.highest, digest_of_ids(ids)});
  std::map<Dims, int64_t> first_at;
  for (int64_t i = 0; i < group.size(); ++i) {
    const int64_t rank = group.ranks[i];
    bounds.add(summary[i][0], summary[i][1]);
    const int64_t first = first_at.try_emplace(place_of_ids(*table.mesh(), rank, all_ids), i).first->second;
    SW_CHECK_VALUE(summary[i][2] == summary[first][2],
                   "[{}] replicated ids differ between ranks {} and {}. Pass equal ids on all ranks (distribute_tensor "
                   "sends one rank's ids), or shard them.",
                   op, group.ranks[first], rank);
  }
  bounds.check(op, table.sizes()[0]);
}

std::vector<int64_t> RowExchange::counts_of(const PlannedIds& ids) const {
  std::vector<int64_t> counts;
  for (const Box& box : table_->boxes())
    counts.push_back(ids.rows_below(box.interval(0).end) - ids.rows_below(box.interval(0).begin));
  return counts;
}

void RowExchange::exchange_counts(const char* op, const at::Tensor& ids, const Spec& all_ids, bool checks_ids) {
  const size_t n_own_boxes = table_->boxes().size();
  IdBounds bounds;
  if (checks_ids) bounds = bounds_of(ids);
  const size_t n_bounds = checks_ids ? 2 : 0;
  std::vector<std::vector<int64_t>> sent;
  std::vector<int64_t> n_from;
  for (const int64_t rank : group_->ranks) {
    sent.emplace_back();
    if (checks_ids) sent.back() = {bounds.lowest, bounds.highest};
    for (const Request& request : requests_)
      if (request.rank == rank) sent.back().push_back(request.n());
    const bool sends_requests = is_partner(*table_->mesh(), rank, along_);
    n_from.push_back(static_cast<int64_t>(n_bounds + (sends_requests ? n_own_boxes : 0)));
  }
  auto arrived = exchange_numbers(*group_, groups_.rows.device(), sent, n_from);
  std::optional<PlannedIds> planned;
  for (size_t member = 0; member < arrived.size() && ids.is_meta(); ++member) {
    if (checks_ids) arrived[member] = {bounds.lowest, bounds.highest};
    int64_t n_ids = 0;
    for (const Box& box : all_ids.layout().boxes(group_->ranks[member])) n_ids += box.numel();
    if (!planned || planned->n() != n_ids) planned.emplace(n_ids, table_->sizes()[0]);
    const auto counts = counts_of(*planned);
    arrived[member].insert(arrived[member].end(), counts.begin(), counts.end());
    arrived[member].resize(n_from[member]);
  }
  std::vector<int64_t> n_incoming(n_own_boxes, 0);
  for (size_t member = 0; member < arrived.size(); ++member) {
    const std::vector<int64_t>& numbers = arrived[member];
    if (checks_ids) bounds.add(numbers[0], numbers[1]);
    for (size_t box = 0; n_bounds + box < numbers.size(); ++box) {
      const int64_t begin = n_incoming[box];
      n_incoming[box] += numbers[n_bounds + box];
      incoming_.push_back({group_->ranks[member], box, begin, n_incoming[box]});
    }
  }
  if (checks_ids) bounds.check(op, table_->sizes()[0]);
  for (const int64_t n : n_incoming) incoming_ids_.push_back(at::empty({n}, groups_.rows.options().dtype(id_dtype())));
}

at::ScalarType RowExchange::id_dtype() const {
  return table_->sizes()[0] <= std::numeric_limits<int32_t>::max() ? at::kInt : at::kLong;
}

const RowExchange::Request& RowExchange::own_request(size_t box) const {
  const int64_t self = table_->mesh()->rank();
  const auto first = std::ranges::find_if(requests_, [&](const Request& request) { return request.rank == self; });
  return first[static_cast<int64_t>(box)];
}

void RowExchange::for_each_own(const std::function<void(const Request&, const IncomingRequest&)>& use) const {
  for (const IncomingRequest& incoming : incoming_)
    if (incoming.rank == table_->mesh()->rank() && incoming.n() > 0) use(own_request(incoming.box), incoming);
}

at::Tensor RowExchange::part_of(const Request& request, const at::Tensor& rows) const {
  return part(rows, request.begin, request.end).narrow(1, column_of(request.box), request.box.sizes[1]);
}

at::Tensor RowExchange::ids_of(const IncomingRequest& incoming) const {
  return part(incoming_ids_[incoming.box], incoming.begin, incoming.end);
}

void RowExchange::exchange_ids() {
  const at::Tensor wanted = groups_.rows.to(id_dtype());
  std::vector<Message> sends, receives;
  for (const Request& request : requests_)
    if (request.rank != table_->mesh()->rank() && request.n() > 0)
      sends.push_back({request.rank, part(wanted, request.begin, request.end)});
  for (const IncomingRequest& incoming : incoming_)
    if (incoming.rank != table_->mesh()->rank() && incoming.n() > 0)
      receives.push_back({incoming.rank, ids_of(incoming)});
  const auto messages = exchange(*group_, groups_.rows.device(), std::move(sends), std::move(receives));
  for_each_own([&](const Request& request, const IncomingRequest& incoming) {
    ids_of(incoming).copy_(part(wanted, request.begin, request.end));
  });
  messages->wait();
}

at::Tensor RowExchange::fetch(c10::ArrayRef<at::Tensor> pieces) const {
  return fetch_by([&](const IncomingRequest& incoming, const at::Tensor& rows) {
    lookup_rows_into(rows, pieces[incoming.box], ids_of(incoming), table_->boxes()[incoming.box].offsets[0]);
  });
}

at::Tensor RowExchange::fetch_kept(c10::ArrayRef<at::Tensor> own_rows) const {
  return fetch_by([&](const IncomingRequest& incoming, const at::Tensor& rows) {
    if (ids_are_equal_)
      rows.copy_(own_rows[incoming.box]);
    else
      lookup_rows_into(rows, own_rows[incoming.box], part(incoming_places_[incoming.box], incoming.begin, incoming.end),
                       0);
  });
}

at::Tensor RowExchange::fetch_packed(c10::ArrayRef<at::Tensor> pieces) const {
  const auto find = [&](const IncomingRequest& incoming, const at::Tensor& words) {
    lookup_rows_into(words, pieces[incoming.box], ids_of(incoming), table_->boxes()[incoming.box].offsets[0]);
  };
  return fetch_by(find, [&](const IncomingRequest& incoming, const at::Tensor& rows) {
    lookup_packed_rows_into(rows, pieces[incoming.box], ids_of(incoming), table_->boxes()[incoming.box].offsets[0]);
  });
}

at::Tensor RowExchange::fetch_by(const FindRows& find, const FindRows& unpacked) const {
  const auto find_own = [&](const at::Tensor& rows) {
    for_each_own([&](const Request& request, const IncomingRequest& incoming) {
      (unpacked ? unpacked : find)(incoming, part_of(request, rows));
    });
  };
  const auto options = at::TensorOptions().dtype(table_->dtype()).device(groups_.rows.device());
  const int64_t self = table_->mesh()->rank();
  const at::Tensor rows = at::empty({groups_.n(), columns_.length()}, options);
  const auto new_message = [&](int64_t n, int64_t width) {
    return unpacked ? at::empty({n, kernels::packed_words(width)}, options.dtype(at::kInt))
                    : at::empty({n, width}, options);
  };
  std::vector<Message> sends, receives;
  std::vector<std::pair<at::Tensor, at::Tensor>> apart;  // received tensors and their destinations
  if (ids_are_equal_) find_own(rows);                    // all partners are sent these rows
  for (const IncomingRequest& incoming : incoming_) {
    const Box& box = table_->boxes()[incoming.box];
    if (incoming.rank == self || incoming.n() == 0 || box.sizes[1] == 0) continue;
    if (ids_are_equal_ && !unpacked) {
      sends.push_back({incoming.rank, part_of(own_request(incoming.box), rows).contiguous()});
      continue;
    }
    const at::Tensor found = new_message(incoming.n(), box.sizes[1]);
    sends.push_back({incoming.rank, found, [&find, incoming, found] { find(incoming, found); }});
  }
  for (const Request& request : requests_) {
    if (request.rank == self || request.n() == 0 || request.box.sizes[1] == 0) continue;
    at::Tensor place = part_of(request, rows);
    if (unpacked || !spans(request.box)) {
      apart.emplace_back(new_message(request.n(), request.box.sizes[1]), place);
      place = apart.back().first;
    }
    receives.push_back({request.rank, place});
  }
  const auto messages = exchange(*group_, groups_.rows.device(), std::move(sends), std::move(receives));
  if (!ids_are_equal_) find_own(rows);
  messages->wait();
  for (const auto& [message, place] : apart)
    if (unpacked)
      lookup_packed_rows_into(place, message, at::arange(message.size(0), groups_.rows.options()), 0);
    else
      place.copy_(message);
  return rows;
}

std::vector<BoxGrads> RowExchange::scatter_gradients(const at::Tensor& sums) const {
  std::vector<BoxGrads> arrived;
  for (size_t box = 0; box < incoming_ids_.size(); ++box) {
    const int64_t n = incoming_ids_[box].numel(), width = table_->boxes()[box].sizes[1];
    arrived.push_back({incoming_ids_[box], {at::empty({n, width}, sums.options())}});
  }
  const auto place_of = [&](const IncomingRequest& incoming) {
    return part(arrived[incoming.box].grads.values, incoming.begin, incoming.end);
  };
  std::vector<Message> sends, receives;
  for (const Request& request : requests_)
    if (request.rank != table_->mesh()->rank() && request.n() > 0 && request.box.sizes[1] > 0)
      sends.push_back({request.rank, part_of(request, sums).contiguous()});
  for (const IncomingRequest& incoming : incoming_)
    if (incoming.rank != table_->mesh()->rank() && incoming.n() > 0 && table_->boxes()[incoming.box].sizes[1] > 0)
      receives.push_back({incoming.rank, place_of(incoming)});
  const auto messages = exchange(*group_, groups_.rows.device(), std::move(sends), std::move(receives));
  for_each_own([&](const Request& request, const IncomingRequest& incoming) {
    place_of(incoming).copy_(part_of(request, sums));
  });
  messages->wait();
  return arrived;
}

}  // namespace shardwise
