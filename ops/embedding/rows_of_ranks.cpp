#include "ops/embedding/rows_of_ranks.h"

#include "runtime/comm/collectives.h"
#include "runtime/comm/messages.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <map>

namespace shardwise {
namespace {

constexpr int64_t kLeastSaving = int64_t{128} << 10;  // bytes; less does not pay for another call

/// A table's rows on all members.
struct NamedRows {
  const OwnRows* own;
  std::vector<int64_t> counts;  // by member
  std::vector<int64_t> rows;    // those of member 0 first
  int64_t first = 0;            // of this rank's
  at::Tensor ids;               // `rows` on the table's device
  IdGroups groups;              // of `ids`; undefined if an all-reduce would not send less

  int64_t n() const { return static_cast<int64_t>(rows.size()); }
  int64_t width() const { return own->sums.size(1); }
  bool may_reduce() const { return groups.rows.defined(); }
  int64_t saving() const { return may_reduce() ? (n() - 2 * groups.n()) * width() * own->sums.element_size() : 0; }

  void group_rows() {
    ids = at::tensor(rows, at::kLong).to(own->rows.device());
    if (!is_reduced(n(), std::ranges::max(counts))) return;  // all members' rows are no fewer than one's
    IdGroups all = group_ids(ids, 0, own->n_rows, /*skipped=*/-1, /*with_group_of=*/true,
                             TableOfIds{own->n_rows, /*are_in_piece=*/true});
    if (is_reduced(n(), all.n())) groups = std::move(all);
  }
};

std::vector<NamedRows> named_rows(const Group& group, const std::vector<OwnRows>& tables) {
  std::vector<NamedRows> result;
  std::vector<int64_t> words;
  for (const OwnRows& own : tables) {
    result.push_back({.own = &own});
    words.push_back(own.rows.numel());
  }
  for (const OwnRows& own : tables) {
    const at::Tensor rows = own.rows.is_meta() ? at::zeros(own.rows.sizes(), at::kLong) : own.rows.cpu();
    const auto* begin = rows.const_data_ptr<int64_t>();
    words.insert(words.end(), begin, begin + rows.numel());
  }
  const auto all = all_gather_numbers(group, words);
  for (size_t member = 0; member < all.size(); ++member) {
    auto next = all[member].begin() + static_cast<int64_t>(tables.size());
    for (size_t t = 0; t < tables.size(); ++t) {
      if (static_cast<int64_t>(member) == group.index) result[t].first = result[t].n();
      result[t].counts.push_back(all[member][t]);
      result[t].rows.insert(result[t].rows.end(), next, next + all[member][t]);
      next += all[member][t];
    }
  }
  for (NamedRows& each : result) each.group_rows();
  return result;
}

/// The gradients of this rank's rows, at their places among the rows of all members; zeros in the others.
at::Tensor terms_of(const NamedRows& table) {
  const at::Tensor places = table.groups.group_of.narrow(0, table.first, table.own->rows.numel());
  return at::zeros({table.groups.n(), table.width()}, table.own->sums.options())
      .index_copy_(0, places, table.own->sums);
}

/// All-reduces tensors of one dtype.
void reduce_together(const Group& group, std::vector<at::Tensor>& terms) {
  if (terms.size() == 1) return all_reduce(group, terms[0], Reduce::kSum);
  std::vector<at::Tensor> flat;
  for (const at::Tensor& each : terms) flat.push_back(each.view(-1));
  const at::Tensor all = at::cat(flat);
  all_reduce(group, all, Reduce::kSum);
  int64_t begin = 0;
  for (at::Tensor& each : terms) {
    each = all.narrow(0, begin, each.numel()).view(each.sizes());
    begin += each.numel();
  }
}

/// The messages with this rank's rows and those of the other members.
class RowMessages {
 public:
  explicit RowMessages(const Group& group) : group_(group) {}

  /// Returns the members' rows, which wait() fills.
  std::vector<at::Tensor> add(const NamedRows& table) {
    const at::Tensor& sums = table.own->sums;
    std::vector<at::Tensor> parts;
    for (size_t member = 0; member < table.counts.size(); ++member) {
      const bool is_self = static_cast<int64_t>(member) == group_.index;
      parts.push_back(is_self ? sums : at::empty({table.counts[member], table.width()}, sums.options()));
      if (is_self) continue;
      if (parts.back().numel() > 0) receives_.push_back({group_.ranks[member], parts.back()});
      if (sums.numel() > 0) sends_.push_back({group_.ranks[member], sums});
    }
    return parts;
  }
  void wait(c10::Device device) { exchange(group_, device, std::move(sends_), std::move(receives_))->wait(); }

 private:
  const Group& group_;
  std::vector<Message> sends_, receives_;
};

}  // namespace

std::vector<BoxGrads> rows_of_ranks(const Group& group, const std::vector<OwnRows>& tables) {
  if (tables.empty()) return {};
  const std::vector<NamedRows> named = named_rows(group, tables);
  int64_t saving = 0;
  for (const NamedRows& table : named) saving += table.saving();
  RowMessages messages(group);
  std::map<at::ScalarType, std::pair<std::vector<size_t>, std::vector<at::Tensor>>> terms;  // of tables
  std::vector<std::vector<at::Tensor>> parts(tables.size());
  for (size_t t = 0; t < tables.size(); ++t) {
    if (named[t].may_reduce() && saving >= kLeastSaving) {
      auto& [numbers, of_dtype] = terms[tables[t].sums.scalar_type()];
      numbers.push_back(t);
      of_dtype.push_back(terms_of(named[t]));
    } else {
      parts[t] = messages.add(named[t]);
    }
  }
  std::vector<BoxGrads> result(tables.size());
  if (std::ranges::any_of(parts, [](const auto& each) { return !each.empty(); }))
    messages.wait(tables[0].sums.device());
  for (size_t t = 0; t < tables.size(); ++t)
    if (!parts[t].empty()) result[t] = {named[t].ids, {at::cat(parts[t])}};
  for (auto& [dtype, of_dtype] : terms) {
    auto& [numbers, sums] = of_dtype;
    reduce_together(group, sums);
    for (size_t i = 0; i < numbers.size(); ++i) result[numbers[i]] = {named[numbers[i]].groups.rows, {sums[i]}};
  }
  return result;
}

}  // namespace shardwise
