#include "runtime/comm/agreement.h"

#include "runtime/comm/comm_trace.h"
#include "runtime/comm/digest.h"
#include "runtime/comm/error_text.h"
#include "runtime/comm/group_backend.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <exception>

namespace shardwise {
namespace {

using Words = std::vector<int64_t>;

constexpr int64_t kWords = 32;  // of the first message, its own number of words among them

/// How an error is thrown again; the first word of what a rank sends.
enum class Outcome : int64_t { kFacts, kValueError, kTypeError, kIndexError, kNotImplemented, kError };

Outcome outcome_of(const std::exception& error) {
  if (dynamic_cast<const c10::ValueError*>(&error)) return Outcome::kValueError;
  if (dynamic_cast<const c10::TypeError*>(&error)) return Outcome::kTypeError;
  if (dynamic_cast<const c10::IndexError*>(&error)) return Outcome::kIndexError;
  if (dynamic_cast<const c10::NotImplementedError*>(&error)) return Outcome::kNotImplemented;
  return Outcome::kError;
}

void throw_again(Outcome outcome, const std::string& text) {
  TORCH_CHECK_VALUE(outcome != Outcome::kValueError, text);
  TORCH_CHECK_TYPE(outcome != Outcome::kTypeError, text);
  TORCH_CHECK_INDEX(outcome != Outcome::kIndexError, text);
  TORCH_CHECK_NOT_IMPLEMENTED(outcome != Outcome::kNotImplemented, text);
  TORCH_CHECK(outcome == Outcome::kFacts, text);
}

std::vector<Facts> agree(const Group& group, const char* op, Outcome outcome, const Facts& own) {
  const CommScope scope(op, CommScope::Cause::kProgram);
  Words mine{static_cast<int64_t>(outcome)};
  mine.insert(mine.end(), own.words().begin(), own.words().end());
  std::vector<Facts> result;
  Outcome first = Outcome::kFacts;
  std::string text;
  for (Words& words : gather_numbers(group, "agree", std::move(mine))) {
    const auto each = static_cast<Outcome>(words[0]);
    words.erase(words.begin());
    result.push_back(Facts::of_words(std::move(words)));
    if (first != Outcome::kFacts || each == Outcome::kFacts) continue;
    first = each;
    text = FactReader(result.back()).name();
  }
  throw_again(first, text);
  const std::string name = FactReader(result[0]).name();
  for (size_t i = 1; i < result.size(); ++i) {
    const std::string other = FactReader(result[i]).name();
    TORCH_CHECK_VALUE(other == name,
                      fmt::format("[{}] rank {} gives {}, rank {} gives {}. Give one kind on every rank.", op,
                                  group.ranks[0], name, group.ranks[i], other));
  }
  return result;
}

}  // namespace

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

int64_t FactReader::number() {
  TORCH_CHECK(next_ < words_.size(),
              "[agree] there are no more facts. Read them in the order in which they were added.");
  return words_[next_++];
}

Dims FactReader::list() {
  Dims numbers(number());
  for (int64_t& each : numbers) each = number();
  return numbers;
}

std::string FactReader::text() {
  std::string text(number(), '\0');
  for (size_t i = 0; i < text.size(); i += sizeof(int64_t)) {
    const int64_t word = number();
    std::memcpy(text.data() + i, &word, std::min(sizeof word, text.size() - i));
  }
  return text;
}

std::vector<Words> gather_numbers(const Group& group, const char* what, Words own, bool is_counted) {
  if (group.size() == 1) return {std::move(own)};
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  const c10::DeviceType device = numbers_device(group);
  own.insert(own.begin(), static_cast<int64_t>(own.size()) + 1);
  const auto gather = [&](int64_t length) {
    const at::Tensor row = at::zeros({length}, at::kLong);
    std::copy_n(own.begin(), std::min(static_cast<size_t>(length), own.size()), row.mutable_data_ptr<int64_t>());
    return gather_rows(group, what, row.to(device), is_counted);
  };
  at::Tensor rows = gather(kWords);
  const int64_t longest = rows.select(1, 0).max().item<int64_t>();
  if (longest > kWords) rows = gather(longest);
  std::vector<Words> result;
  for (int64_t i = 0; i < group.size(); ++i) {
    const int64_t* const row = rows.const_data_ptr<int64_t>() + i * rows.size(1);
    result.emplace_back(row + 1, row + row[0]);
  }
  return result;
}

std::vector<Facts> agree(const Group& group, const char* op, const Facts& own) {
  return agree(group, op, Outcome::kFacts, own);
}

std::vector<Facts> agree(const Group& group, const char* op, c10::function_ref<Facts()> own) {
  Outcome outcome = Outcome::kFacts;
  const Facts facts = [&] {
    try {
      return own();
    } catch (const std::exception& error) {
      outcome = outcome_of(error);
      return Facts(error_text(error));
    }
  }();
  return agree(group, op, outcome, facts);
}

bool have_equal(const Group& group, const char* what, const Facts& own) {
  if (group.size() == 1) return true;
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  Digest digest;
  for (const int64_t word : own.words()) digest.add(word);
  const auto options = at::TensorOptions(at::kLong).device(numbers_device(group));
  const at::Tensor digests = gather_rows(group, what, at::full({1}, digest.value(), options));
  return digests.eq(digest.value()).all().item<bool>();
}

}  // namespace shardwise
