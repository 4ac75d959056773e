// runtime/comm/agreement.h: what the ranks of a group tell each other before they go on alike.
//
//   Facts own("a part");                                           // what a rank gives
//   own.number(dim).list(part.sizes());
//   for (const Facts& each : agree(group, "from_local", own)) {    // the members', by group order
//     FactReader reader(each);
//     ... reader.number() ... reader.list() ...
//   }
//
// The facts of all decide what follows, so that it is the same on all: an error, or a layout.
#pragma once

#include "placements/box.h"
#include "runtime/comm/group.h"

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace shardwise {

/// Values that one rank tells the others, in an order that all ranks know.
class Facts {
 public:
  /// `name`: what the rank gives, "a tensor", for the error of ranks that give different things.
  explicit Facts(std::string_view name = "") { text(name); }
  /// Facts that words() gave before.
  static Facts of_words(std::vector<int64_t> words);

  Facts& number(int64_t number);
  Facts& list(c10::IntArrayRef numbers);
  Facts& maybe(const std::optional<Dims>& numbers);
  Facts& text(std::string_view text);

  bool operator==(const Facts&) const = default;
  const std::vector<int64_t>& words() const { return words_; }

 private:
  std::vector<int64_t> words_;
};

/// Reads facts in the order in which they were added. The facts outlive it. Throws: c10::Error where there are no more.
class FactReader {
 public:
  explicit FactReader(const Facts& facts) : words_(facts.words()), name_(text()) {}

  const std::string& name() const { return name_; }
  bool at_end() const { return next_ == words_.size(); }
  int64_t number();
  Dims list();
  std::optional<Dims> maybe() { return number() != 0 ? std::optional(list()) : std::nullopt; }
  std::string text();

 private:
  const std::vector<int64_t>& words_;
  size_t next_ = 0;
  std::string name_;
};

/// An exception of one rank, as other ranks can throw it, too.
struct RankError {
  /// Types of c10's errors for a caller's mistake; kOther is c10::Error.
  enum class Type : int64_t { kNone, kOther, kValue, kIndex, kType, kNotImplemented };
  Type type = Type::kNone;
  std::string text;

  explicit operator bool() const { return type != Type::kNone; }
  /// The exception being handled.
  static RankError current();
  /// Throws: the exception, if there is one.
  void raise() const;
};

/// The members' facts, by group order. Collective. `op` is named by errors; it lives as long as the program. `error`: why this rank has no
/// facts to give.
///
/// Throws, alike on all members: the error of the first rank that has one, which the others add the number of; c10::ValueError where they
/// give facts of different kinds.
/// Cost: one gather of some 30 words per rank; a second one where the facts of a rank are longer. CommTrace leaves them out.
std::vector<Facts> agree(const Group& group, const char* op, const Facts& own, const RankError& error = {});

/// The members' numbers, by group order, where all have as many. Collective: one communication called `what`, as of gather_rows()
/// (group_backend.h).
std::vector<std::vector<int64_t>> gather_alike(const Group& group, const char* what, const std::vector<int64_t>& own,
                                               bool is_counted = false);

/// The same where they may have different numbers of them.
/// Cost: one gather of 32 words per rank; a second one where a rank has more than 30 numbers.
std::vector<std::vector<int64_t>> gather_numbers(const Group& group, const char* what, std::vector<int64_t> own,
                                                 bool is_counted = false);

/// Sends each member its numbers, by group order, and returns those from each, of which there are `n_from`. Collective: one all_to_all on
/// `device`.
std::vector<std::vector<int64_t>> exchange_numbers(const Group& group, c10::Device device,
                                                   const std::vector<std::vector<int64_t>>& to,
                                                   const std::vector<int64_t>& n_from);

/// True where all members have the same facts. Collective. `what` says what is compared ("compare meshes") and lives as long as the program.
/// Cost: one gather of a number per rank, which CommTrace leaves out.
bool have_equal(const Group& group, const char* what, const Facts& own);

}  // namespace shardwise
