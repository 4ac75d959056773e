#include "wrappers/distributed_embedding/request_exchange.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <array>
#include <limits>

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
      word_(at::kInt),
      sent_room_(static_cast<size_t>(lanes.n_ranks())),
      received_room_(static_cast<size_t>(lanes.n_ranks())) {
  for (const Lane& lane : lanes.lanes)
    for (const int64_t height : lane.heights)
      if (height > std::numeric_limits<int32_t>::max()) word_ = at::kLong;
}

at::Tensor RequestExchange::words(int64_t n) const { return at::empty({n}, word_); }

std::vector<int64_t> RequestExchange::head_for(const Step& step, const RowRequests& requests, int64_t rank) const {
  std::vector<int64_t> head{static_cast<int64_t>(step.error_.type)};
  for (const int64_t number : step.own_.facts.numbers()) head.push_back(number);
  head.resize(static_cast<size_t>(head_words()), 0);
  for (size_t lane = 0; lane < step.arrivals_.size(); ++lane) {
    const std::array words{requests.n_from(lane, rank), step.arrivals_[lane], requests.first_from(lane, rank)};
    std::ranges::copy(words, head.begin() + kCounts + kLaneWords * static_cast<int64_t>(lane));
  }
  return head;
}

template <class Word>
RequestExchange::Outgoing RequestExchange::outgoing(const Step& step, const RowRequests& requests, int64_t rank) const {
  const int64_t n_first = head_words() + sent_room_[static_cast<size_t>(rank)];
  const std::vector<int64_t> head = head_for(step, requests, rank);
  const int64_t n = n_rows(head);
  const at::Tensor all = words(std::max(n_first, head_words() + n));
  auto* first = all.mutable_data_ptr<Word>();
  Word* const rows = std::ranges::transform(head, first, [](int64_t number) { return static_cast<Word>(number); }).out;
  std::fill(rows + n, first + all.numel(), Word{0});
  if (!step.error_) requests.write_rows(*lanes_, rank, rows);
  const c10::Device device(lanes_->mesh->device_type());
  return {n, all.narrow(0, 0, n_first).to(device), all.narrow(0, n_first, all.numel() - n_first).to(device)};
}

RequestExchange::Step RequestExchange::start(const RowRequests& requests, std::vector<int64_t> arrivals,
                                             const RankError& error, OwnFacts own) {
  const Group& group = *lanes_->mesh->group();
  const c10::Device device(lanes_->mesh->device_type());
  Step step;
  step.exchange_ = this;
  step.error_ = error;
  step.own_ = std::move(own);
  step.arrivals_ = std::move(arrivals);
  step.received_room_ = received_room_;
  std::vector<Message> sends, receives;
  for (int64_t rank = 0; rank < lanes_->n_ranks(); ++rank) {
    const auto at = static_cast<size_t>(rank);
    if (rank == lanes_->own_rank()) {
      step.sent_.emplace_back();
      step.received_.emplace_back();
      continue;
    }
    step.sent_.push_back(word_ == at::kInt ? outgoing<int32_t>(step, requests, rank)
                                           : outgoing<int64_t>(step, requests, rank));
    step.received_.push_back(words(head_words() + received_room_[at]).to(device));
    sends.push_back({group.ranks[at], step.sent_.back().first});
    receives.push_back({group.ranks[at], step.received_.back()});
  }
  step.messages_ = exchange(group, device, std::move(sends), std::move(receives));
  return step;
}

IncomingRows RequestExchange::Step::finish(const RowRequests& requests) {
  messages_->wait();
  return exchange_->word_ == at::kInt ? exchange_->read<int32_t>(*this, requests)
                                      : exchange_->read<int64_t>(*this, requests);
}

int64_t RequestExchange::n_rows(const std::vector<int64_t>& head) const {
  int64_t n = 0;
  for (size_t lane = 0; lane < lanes_->lanes.size(); ++lane) n += count_of(head, lane);
  return n;
}

template <class Word>
IncomingRows RequestExchange::read(Step& step, const RowRequests& requests) {
  const Group& group = *lanes_->mesh->group();
  const c10::Device device(lanes_->mesh->device_type());
  const auto own = static_cast<size_t>(lanes_->own_rank());
  const size_t n_lanes = lanes_->lanes.size(), n_ranks = step.received_.size();
  std::vector<std::vector<int64_t>> heads;
  std::vector<at::Tensor> received;
  std::vector<StepFacts> facts;
  for (size_t rank = 0; rank < n_ranks; ++rank) {
    const bool is_own = rank == own || !group.sends;  // on meta, all ranks have equal requests
    received.push_back(is_own ? at::Tensor() : step.received_[rank].cpu());
    if (is_own) {
      heads.push_back(head_for(step, requests, lanes_->own_rank()));
    } else {
      const auto* const head = received[rank].template const_data_ptr<Word>();
      heads.emplace_back(head, head + head_words());
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
      rest[rank] = words(n_rows(heads[rank]) - room).to(device);
      receives.push_back({group.ranks[rank], rest[rank]});
    }
    sent_room_[rank] = next_room(sent.n_rows, sent_room_[rank]);
    received_room_[rank] = next_room(n_rows(heads[rank]), received_room_[rank]);
  }
  if (!sends.empty() || !receives.empty())
    exchange(group, device, std::move(sends), std::move(receives), /*by_all=*/false)->wait();

  IncomingRows incoming;
  std::vector<Word*> next;  // by lane
  for (size_t lane = 0; lane < n_lanes; ++lane) {
    incoming.counts.emplace_back();
    incoming.firsts.emplace_back();
    incoming.arrivals.emplace_back();
    int64_t n = 0;
    for (size_t rank = 0; rank < n_ranks; ++rank) {
      incoming.firsts[lane].push_back(n);
      const int64_t* const words = &heads[rank][kCounts + kLaneWords * lane];
      incoming.counts[lane].push_back(words[0]);
      incoming.arrivals[lane].push_back({words[1], words[2]});
      n += words[0];
    }
    incoming.rows.push_back(words(n));
    next.push_back(incoming.rows[lane].template mutable_data_ptr<Word>());
  }
  for (size_t rank = 0; rank < n_ranks; ++rank) {
    std::vector<Word> rows(static_cast<size_t>(n_rows(heads[rank])));
    if (rank == own || !group.sends) {
      requests.write_rows(*lanes_, lanes_->own_rank(), rows.data());
    } else {
      const auto n_first = std::min(n_rows(heads[rank]), step.received_room_[rank]);
      std::copy_n(received[rank].template const_data_ptr<Word>() + head_words(), n_first, rows.begin());
      if (rest[rank].defined()) {
        const at::Tensor more = rest[rank].cpu();
        std::copy_n(more.template const_data_ptr<Word>(), more.numel(), rows.begin() + n_first);
      }
    }
    const Word* from = rows.data();
    for (size_t lane = 0; lane < n_lanes; ++lane) {
      next[lane] = std::copy_n(from, incoming.counts[lane][rank], next[lane]);
      from += incoming.counts[lane][rank];
    }
  }
  for (at::Tensor& rows : incoming.rows)
    if (!device.is_meta()) rows = rows.to(device);
  return incoming;
}

}  // namespace shardwise
