#include "runtime/comm/agreement.h"

#include "runtime/comm/collectives.h"
#include "runtime/comm/comm_scope.h"
#include "runtime/comm/digest.h"
#include "runtime/comm/error_text.h"
#include "runtime/comm/group_backend.h"
#include "runtime/comm/memory_view.h"
#include "text/check.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

namespace shardwise {
namespace {

using Words = std::vector<int64_t>;

constexpr size_t kWords = kShortFacts + 2;  // of the first message: its own count, the type of an error, and facts

int64_t purpose_of(const char* what) {
  Digest digest;
  digest.add(std::string_view(what));
  digest.add(std::string_view(CommScope::current_op()));
  return digest.value();
}

}  // namespace

RankError RankError::current() {
  try {
    throw;
  } catch (const std::exception& error) {
    const Type type = dynamic_cast<const c10::IndexError*>(&error)            ? Type::kIndex
                      : dynamic_cast<const c10::TypeError*>(&error)           ? Type::kType
                      : dynamic_cast<const c10::ValueError*>(&error)          ? Type::kValue
                      : dynamic_cast<const c10::NotImplementedError*>(&error) ? Type::kNotImplemented
                      : dynamic_cast<const c10::DistBackendError*>(&error)    ? Type::kDistBackend
                      : dynamic_cast<const c10::OutOfMemoryError*>(&error)    ? Type::kOutOfMemory
                                                                              : Type::kOther;
    return {type, error_text(error)};
  } catch (...) {
    return {Type::kOther, "an exception that is no std::exception"};
  }
}

void RankError::raise() const {
  TORCH_CHECK_INDEX(type != Type::kIndex, text);
  TORCH_CHECK_TYPE(type != Type::kType, text);
  TORCH_CHECK_VALUE(type != Type::kValue, text);
  TORCH_CHECK_NOT_IMPLEMENTED(type != Type::kNotImplemented, text);
  TORCH_CHECK_WITH(DistBackendError, type != Type::kDistBackend, text);
  TORCH_CHECK_WITH(OutOfMemoryError, type != Type::kOutOfMemory, text);
  TORCH_CHECK(type == Type::kNone, text);
}

Facts Facts::of_words(std::vector<int64_t> words) {
  Facts facts;
  facts.words_ = std::move(words);
  return facts;
}

Facts& Facts::number(int64_t number) {
  words_.push_back(number);
  return *this;
}

Facts& Facts::list(c10::IntArrayRef numbers) {
  words_.push_back(static_cast<int64_t>(numbers.size()));
  words_.insert(words_.end(), numbers.begin(), numbers.end());
  return *this;
}

Facts& Facts::maybe(const std::optional<Dims>& numbers) {
  number(numbers.has_value());
  return numbers ? list(*numbers) : *this;
}

Facts& Facts::text(std::string_view text) {
  number(static_cast<int64_t>(text.size()));
  const size_t begin = words_.size();
  words_.resize(begin + (text.size() + sizeof(int64_t) - 1) / sizeof(int64_t));
  if (!text.empty()) std::memcpy(words_.data() + begin, text.data(), text.size());
  return *this;
}

namespace {

/// The `n` words from `next` on, which moves behind them.
const int64_t* take(const Words& words, size_t& next, size_t n) {
  TORCH_CHECK(n <= words.size() - next,
              "[agree] there are no more facts. Read them in the order in which they were added.");
  return words.data() + std::exchange(next, next + n);
}

}  // namespace

int64_t FactReader::number() { return *take(words_, next_, 1); }

Dims FactReader::list() {
  const auto n = static_cast<size_t>(number());
  const int64_t* const begin = take(words_, next_, n);
  return {begin, begin + n};
}

std::string FactReader::text() {
  const auto n_bytes = static_cast<size_t>(number());
  const int64_t* const begin = take(words_, next_, (n_bytes + sizeof(int64_t) - 1) / sizeof(int64_t));
  return {reinterpret_cast<const char*>(begin), n_bytes};
}

namespace {

/// With `says_purpose` a word says what the numbers are for, and zeros follow short ones. So if ranks make different calls, their messages
/// meet on every backend, and all ranks learn of it.
std::vector<Words> gather_words(const Group& group, const char* what, const Words& own, bool is_counted,
                                bool says_purpose) {
  if (group.size() == 1) return {own};
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  const size_t n_before = says_purpose ? 1 : 0;
  const size_t n_words = says_purpose ? std::max(own.size(), kWords) + n_before : own.size();
  at::Tensor gathered = at::empty({group.size(), static_cast<int64_t>(n_words)}, at::kLong);
  int64_t* const sent = gathered.mutable_data_ptr<int64_t>() + group.index * n_words;
  if (says_purpose) *sent = purpose_of(what);
  std::fill(std::ranges::copy(own, sent + n_before).out, sent + n_words, 0);
  gathered = gathered.to(numbers_device(group));
  all_gather(group, {.name = what, .counted_as = is_counted ? what : nullptr, .says_purpose = says_purpose},
             narrowed(gathered, 0, group.index, 1), gathered);
  const at::Tensor rows = gathered.cpu();
  std::vector<Words> result;
  const auto* next = rows.const_data_ptr<int64_t>();
  for (int64_t i = 0; i < group.size(); ++i, next += n_words) {
    SW_CHECK_VALUE(!says_purpose || next[0] == *rows.const_data_ptr<int64_t>(),
                   "[{}] ranks {} and {} make different calls; this rank calls {}. All ranks of a group must make the "
                   "same calls in the same order: SHARDWISE_CHECK=1 names the first that differ.",
                   what, group.ranks[0], group.ranks[i], CommScope::current_op());
    result.emplace_back(next + n_before, next + n_before + own.size());
  }
  return result;
}

}  // namespace

std::vector<Words> gather_alike(const Group& group, const char* what, const Words& own, bool is_counted) {
  return gather_words(group, what, own, is_counted, /*says_purpose=*/!is_counted);
}

std::vector<Words> gather_numbers(const Group& group, const char* what, Words own, bool is_counted) {
  if (group.size() == 1) return {std::move(own)};
  own.insert(own.begin(), static_cast<int64_t>(own.size()) + 1);
  Words begin = own;
  begin.resize(kWords);
  std::vector<Words> rows = gather_words(group, what, begin, is_counted, /*says_purpose=*/true);
  const auto longest = static_cast<size_t>(std::ranges::max(rows)[0]);
  if (longest > kWords) {
    own.resize(longest);
    rows = gather_words(group, what, own, is_counted, /*says_purpose=*/true);
  }
  for (Words& row : rows) row = {row.begin() + 1, row.begin() + row[0]};
  return rows;
}

std::vector<Words> exchange_numbers(const Group& group, c10::Device device, const std::vector<Words>& to,
                                    const std::vector<int64_t>& n_from) {
  Words sent, n_to;
  for (const Words& numbers : to) {
    sent.insert(sent.end(), numbers.begin(), numbers.end());
    n_to.push_back(static_cast<int64_t>(numbers.size()));
  }
  const at::Tensor sending = at::tensor(sent, at::kLong).to(group.sends ? device : c10::Device(at::kCPU));
  const int64_t n_all = std::accumulate(n_from.begin(), n_from.end(), int64_t{0});
  const at::Tensor received = at::empty({n_all}, sending.options());
  all_to_all(group, received, sending, n_from, n_to);
  if (!group.sends) {  // the other ranks count as equal
    std::vector<Words> like_own(to.size(), to[group.index]);
    for (size_t i = 0; i < to.size(); ++i) like_own[i].resize(n_from[i]);
    return like_own;
  }
  const at::Tensor on_cpu = received.cpu();
  const auto* next = on_cpu.const_data_ptr<int64_t>();
  std::vector<Words> result;
  for (const int64_t n : n_from) {
    result.emplace_back(next, next + n);
    next += n;
  }
  return result;
}

std::vector<Facts> agree(const Group& group, const char* op, const Facts& own, const RankError& error) {
  const CommScope scope(op, CommScope::Cause::kProgram);
  Words mine{static_cast<int64_t>(error.type)};
  const Facts facts = error ? Facts(error.text) : own;
  mine.insert(mine.end(), facts.words().begin(), facts.words().end());
  std::vector<Facts> result;
  RankError first;
  for (Words& words : gather_numbers(group, "agree", std::move(mine))) {
    const auto type = static_cast<RankError::Type>(words[0]);
    words.erase(words.begin());
    result.push_back(Facts::of_words(std::move(words)));
    if (first || type == RankError::Type::kNone) continue;
    const auto i = static_cast<int64_t>(result.size()) - 1;
    first = {type, FactReader(result.back()).name()};
    if (i != group.index) first.text += fmt::format(" (on rank {})", group.ranks[i]);
  }
  first.raise();
  const std::string name = FactReader(result[0]).name();
  for (size_t i = 1; i < result.size(); ++i) {
    const std::string other = FactReader(result[i]).name();
    SW_CHECK_VALUE(other == name, "[{}] rank {} gives {}, but rank {} gives {}. Give the same kind on every rank.", op,
                   group.ranks[0], name, group.ranks[i], other);
  }
  return result;
}

std::vector<std::string> gathered_texts(const Group& group, const std::string& own) {
  std::vector<Words> to(group.size());
  to[0] = Facts(own).words();
  std::vector<int64_t> n_from(group.size(), 0);
  const auto lengths = gather_alike(group, "gather texts", {static_cast<int64_t>(to[0].size())});
  for (int64_t i = 0; i < group.size() && group.index == 0; ++i) n_from[i] = lengths[i][0];
  std::vector<std::string> texts;
  for (Words& words : exchange_numbers(group, numbers_device(group), to, n_from))
    if (!words.empty()) texts.push_back(FactReader(Facts::of_words(std::move(words))).name());
  return texts;
}

bool have_equal(const Group& group, const char* what, const Facts& own) {
  Digest digest;
  for (const int64_t word : own.words()) digest.add(word);
  const auto all = gather_alike(group, what, {digest.value()});
  return std::ranges::count(all, all[0]) == group.size();
}

}  // namespace shardwise
