#include "wrappers/distributed_embedding/request_exchange.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>

#include <algorithm>
#include <limits>
#include <utility>

namespace shardwise {
namespace {

/// The room of the next message, if the last one had `n` rows and room for `room`. It grows to a little more than `n`, and shrinks only if less than
/// half would do.
int64_t next_room(int64_t n, int64_t room) {
  const int64_t wanted = n + n / 16 + 16;
  return n > room || wanted < room / 2 ? wanted : room;
}

}  // namespace

RequestExchange::RequestExchange(const TableLanes& lanes)
    : lanes_(&lanes),
      words_(at::TensorOptions().dtype(at::kInt).device(lanes.mesh->device_type())),
      sent_room_(static_cast<size_t>(lanes.n_ranks())),
      received_room_(static_cast<size_t>(lanes.n_ranks())) {
  for (const Lane& lane : lanes.lanes)
    for (const int64_t height : lane.heights)
      if (height > std::numeric_limits<int32_t>::max()) words_ = words_.dtype(at::kLong);
}

at::Tensor RequestExchange::new_words(int64_t n) const { return at::empty({n}, words_); }

std::vector<int64_t> RequestExchange::head_for(const Step& step, const RowRequests& requests, int64_t rank) const {
  std::vector<int64_t> head{static_cast<int64_t>(step.error_.type)};
  for (const int64_t number : step.own_.facts.numbers()) head.push_back(number);
  for (size_t lane = 0; lane < lanes_->lanes.size(); ++lane)
    head.push_back(step.error_ ? 0 : requests.n_from(lane, rank));
  return head;
}

RequestExchange::Outgoing RequestExchange::outgoing(const Step& step, const RowRequests& requests, int64_t rank) const {
  std::vector<int64_t> numbers = head_for(step, requests, rank);
  const int64_t n = n_rows(numbers), n_first = head_words() + sent_room_[static_cast<size_t>(rank)];
  numbers.resize(static_cast<size_t>(std::max(n_first, head_words() + n)));
  if (!step.error_) requests.write_rows(*lanes_, rank, numbers.data() + head_words());
  const at::Tensor words = at::tensor(numbers, words_);
  return {n, words.narrow(0, 0, n_first), words.narrow(0, n_first, words.numel() - n_first)};
}

RequestExchange::Step RequestExchange::start(const RowRequests& requests, const RankError& error, OwnFacts own) {
  const Group& group = *lanes_->mesh->group();
  Step step;
  step.exchange_ = this;
  step.error_ = error;
  step.own_ = std::move(own);
  step.received_room_ = received_room_;
  std::vector<Message> sends, receives;
  for (int64_t rank = 0; rank < lanes_->n_ranks(); ++rank) {
    const auto at = static_cast<size_t>(rank);
    if (rank == lanes_->own_rank()) {
      step.sent_.emplace_back();
      step.received_.emplace_back();
      continue;
    }
    step.sent_.push_back(outgoing(step, requests, rank));
    step.received_.push_back(new_words(head_words() + received_room_[at]));
    sends.push_back({group.ranks[at], step.sent_.back().first});
    receives.push_back({group.ranks[at], step.received_.back()});
  }
  step.messages_ = exchange(group, words_.device(), std::move(sends), std::move(receives));
  return step;
}

IncomingRows RequestExchange::Step::finish(const RowRequests& requests) {
  messages_->wait();
  return exchange_->read(*this, requests);
}

int64_t RequestExchange::n_rows(const std::vector<int64_t>& head) const {
  int64_t n = 0;
  for (size_t lane = 0; lane < lanes_->lanes.size(); ++lane) n += head[kCounts + lane];
  return n;
}

IncomingRows RequestExchange::read(const Step& step, const RowRequests& requests) {
  const Group& group = *lanes_->mesh->group();
  const auto own = static_cast<size_t>(lanes_->own_rank());
  const size_t n_lanes = lanes_->lanes.size(), n_ranks = step.received_.size();
  std::vector<std::vector<int64_t>> heads;
  std::vector<StepFacts> facts;
  for (size_t rank = 0; rank < n_ranks; ++rank) {
    if (rank == own) {
      heads.push_back(head_for(step, requests, lanes_->own_rank()));
    } else {
      const at::Tensor head = step.received_[rank].narrow(0, 0, head_words()).to(at::kCPU, at::kLong);
      heads.emplace_back(head.const_data_ptr<int64_t>(), head.const_data_ptr<int64_t>() + head.numel());
    }
    facts.push_back(StepFacts::of(heads[rank].data() + 1));
  }
  if (std::ranges::any_of(heads, [](const auto& head) { return head[0] != 0; }))
    agree(group, kLayer, Facts(), step.error_);
  check_alike(*lanes_, facts, step.own_);

  // A second message with the rows that did not fit, only between ranks that have any.
  std::vector<Message> sends, receives;
  std::vector<at::Tensor> rest(n_ranks);
  for (size_t rank = 0; rank < n_ranks; ++rank) {
    if (rank == own) continue;
    const Outgoing& sent = step.sent_[rank];
    if (sent.rest.numel()) sends.push_back({group.ranks[rank], sent.rest});
    if (const int64_t room = step.received_room_[rank]; n_rows(heads[rank]) > room) {
      rest[rank] = new_words(n_rows(heads[rank]) - room);
      receives.push_back({group.ranks[rank], rest[rank]});
    }
    sent_room_[rank] = next_room(sent.n_rows, sent_room_[rank]);
    received_room_[rank] = next_room(n_rows(heads[rank]), received_room_[rank]);
  }
  if (!sends.empty() || !receives.empty())
    exchange(group, words_.device(), std::move(sends), std::move(receives), /*by_all=*/false)->wait();

  IncomingRows incoming;
  incoming.counts.resize(n_lanes);
  incoming.firsts.resize(n_lanes);
  std::vector<std::vector<at::Tensor>> rows_of(n_lanes);
  std::vector<int64_t> n_rows_of(n_lanes);
  for (size_t rank = 0; rank < n_ranks; ++rank) {
    const int64_t n = n_rows(heads[rank]);
    at::Tensor rows;
    if (rank == own) {
      std::vector<int64_t> own_rows(static_cast<size_t>(n));
      requests.write_rows(*lanes_, static_cast<int64_t>(rank), own_rows.data());
      rows = at::tensor(own_rows, words_);
    } else {
      rows = step.received_[rank].narrow(0, head_words(), std::min(n, step.received_room_[rank]));
      if (rest[rank].defined()) rows = at::cat({rows, rest[rank]});
    }
    int64_t begin = 0;
    for (size_t lane = 0; lane < n_lanes; ++lane) {
      const int64_t count = heads[rank][kCounts + lane];
      incoming.counts[lane].push_back(count);
      incoming.firsts[lane].push_back(std::exchange(n_rows_of[lane], n_rows_of[lane] + count));
      rows_of[lane].push_back(rows.narrow(0, begin, count));
      begin += count;
    }
  }
  for (const auto& of_lane : rows_of) incoming.rows.push_back(at::cat(of_lane));
  return incoming;
}

}  // namespace shardwise
