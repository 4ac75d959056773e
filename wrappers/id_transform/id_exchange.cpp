#include "wrappers/id_transform/id_exchange.h"

#include "ops/embedding/kernel_views.h"
#include "runtime/comm/agreement.h"
#include "runtime/comm/collectives.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <limits>
#include <numeric>

namespace shardwise {
namespace {

at::Tensor long_tensor(int64_t n) { return at::empty({n}, at::kLong); }
int64_t* words_of(const at::Tensor& tensor) { return tensor.mutable_data_ptr<int64_t>(); }
int64_t total_of(const std::vector<int64_t>& numbers) {
  return std::accumulate(numbers.begin(), numbers.end(), int64_t{0});
}

at::Tensor exchanged(const Group& group, const at::Tensor& sent, const std::vector<int64_t>& n_to,
                     const std::vector<int64_t>& n_from) {
  at::Tensor arrived = long_tensor(total_of(n_from));
  all_to_all(group, arrived, sent, n_from, n_to);
  return arrived;
}

}  // namespace

int64_t IdOwners::member_of(int64_t id) const {
  const auto after = std::upper_bound(first_bucket.begin(), first_bucket.end(), buckets.bucket_of(id));
  return member_at[after - first_bucket.begin() - 1];
}

IdExchange::IdExchange(const Group& group, const IdOwners& owners, const at::Tensor& ids)
    : group_(group), n_to_(group.size(), 0), n_from_(group.size(), 0) {
  auto [uses, place_of] = unique_ids(ids);
  wanted_ = uses.ids;
  counts_ = uses.counts;
  place_of_ = place_of;
  const int64_t n = wanted_.numel();
  if (group.size() == 1) {
    n_to_[0] = n;
    return;
  }
  const int64_t *id = numbers_of(uses.ids), *count = numbers_of(uses.counts);
  std::vector<int64_t> member(n), next(group.size(), 0);
  for (int64_t i = 0; i < n; ++i) ++n_to_[member[i] = owners.member_of(id[i])];
  std::exclusive_scan(n_to_.begin(), n_to_.end(), next.begin(), int64_t{0});
  const at::Tensor places = long_tensor(n);
  wanted_ = long_tensor(n);
  counts_ = long_tensor(n);
  auto *place_of_unique = words_of(places), *wanted = words_of(wanted_), *counts = words_of(counts_);
  for (int64_t i = 0; i < n; ++i) {
    const int64_t place = place_of_unique[i] = next[member[i]]++;
    wanted[place] = id[i];
    counts[place] = count[i];
  }
  place_of_ = places.index_select(0, place_of);
}

NumbersByMember IdExchange::send_headers(const std::vector<int64_t>& numbers) {
  NumbersByMember sent(group_.size(), numbers);
  for (size_t member = 0; member < sent.size(); ++member) sent[member].push_back(n_to_[member]);
  const std::vector<int64_t> n_words(group_.size(), static_cast<int64_t>(numbers.size()) + 1);
  NumbersByMember arrived = exchange_numbers(group_, at::kCPU, sent, n_words);
  for (size_t member = 0; member < arrived.size(); ++member) {
    n_from_[member] = arrived[member].back();
    arrived[member].pop_back();
  }
  return arrived;
}

IdUses IdExchange::send_ids(bool with_counts, bool counts_here) {
  const auto n_words = [&](std::vector<int64_t> splits) {
    for (int64_t& n : splits) n += with_counts ? (n + 1) / 2 : 0;  // two counts of 32 bits fill a word
    return splits;
  };
  const std::vector<int64_t> to = n_words(n_to_), from = n_words(n_from_);
  const at::Tensor sent = at::zeros({total_of(to)}, at::kLong);
  auto* word = words_of(sent);
  const int64_t *id = words_of(wanted_), *count = words_of(counts_);
  for (size_t member = 0; member < to.size(); ++member) {
    std::copy_n(id, n_to_[member], word);
    auto* packed = reinterpret_cast<int32_t*>(word + n_to_[member]);
    for (int64_t i = 0; with_counts && counts_here && i < n_to_[member]; ++i)
      packed[i] = static_cast<int32_t>(std::min<int64_t>(count[i], std::numeric_limits<int32_t>::max()));
    id += n_to_[member];
    count += n_to_[member];
    word += to[member];
  }
  const at::Tensor arrived = exchanged(group_, sent, to, from);
  const at::Tensor ids = long_tensor(total_of(n_from_)), counts = long_tensor(ids.numel());
  const int64_t* next = words_of(arrived);
  int64_t *to_id = words_of(ids), *to_count = words_of(counts);
  for (size_t member = 0; member < from.size(); ++member) {
    to_id = std::copy_n(next, n_from_[member], to_id);
    if (with_counts)
      to_count = std::copy_n(reinterpret_cast<const int32_t*>(next + n_from_[member]), n_from_[member], to_count);
    next += from[member];
  }
  if (std::ranges::count_if(n_from_, [](int64_t n) { return n > 0; }) <= 1) {  // one member's ids are distinct
    place_of_incoming_ = at::Tensor();
    return {ids, with_counts ? counts : at::Tensor()};
  }
  auto [uses, place_of] = unique_ids(ids);
  place_of_incoming_ = place_of;
  uses.counts = with_counts ? at::zeros({uses.ids.numel()}, at::kLong).index_add_(0, place_of, counts) : at::Tensor();
  return uses;
}

NumbersByMember IdExchange::send_rows(const at::Tensor& rows, const std::vector<int64_t>& numbers) {
  const auto n_numbers = static_cast<int64_t>(numbers.size());
  std::vector<int64_t> to = n_from_, from = n_to_;
  for (int64_t& n : to) n += n_numbers;
  for (int64_t& n : from) n += n_numbers;
  const at::Tensor answers = place_of_incoming_.defined() ? rows.index_select(0, place_of_incoming_) : rows;
  const at::Tensor sent = long_tensor(total_of(to));
  const int64_t* answer = words_of(answers);
  auto* word = words_of(sent);
  for (const int64_t n : n_from_) {
    word = std::ranges::copy(numbers, word).out;
    word = std::copy_n(answer, n, word);
    answer += n;
  }
  const at::Tensor arrived = exchanged(group_, sent, to, from);
  found_ = long_tensor(wanted_.numel());
  NumbersByMember result;
  const int64_t* next = words_of(arrived);
  auto* found = words_of(found_);
  for (const int64_t n : n_to_) {
    result.emplace_back(next, next + n_numbers);
    found = std::copy_n(next + n_numbers, n, found);
    next += n_numbers + n;
  }
  return result;
}

at::Tensor IdExchange::rows() const { return found_.index_select(0, place_of_); }

}  // namespace shardwise
