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

#include <c10/util/FunctionRef.h>

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

/// The members' facts, by group order. Collective. `op` is named by errors; it lives as long as the program.
///
/// Throws, alike on all members: c10::ValueError where they give facts of different kinds.
/// Cost: one gather of some 30 words per rank; a second one where the facts of a rank are longer. CommTrace leaves them out.
std::vector<Facts> agree(const Group& group, const char* op, const Facts& own);

/// The same of the facts that `own()` gives. What it throws on one rank, all members throw: the first one's, in its type where that is one
/// of c10's errors for a caller's mistake, and as c10::Error otherwise.
std::vector<Facts> agree(const Group& group, const char* op, c10::function_ref<Facts()> own);

/// The members' numbers, by group order. Collective. A communication called `what`, as of gather_rows() (group_backend.h).
/// Cost: one gather of 32 words per rank; a second one where a rank has more than 31 numbers.
std::vector<std::vector<int64_t>> gather_numbers(const Group& group, const char* what, std::vector<int64_t> own,
                                                 bool is_counted = false);

/// True where all members have the same facts. Collective. `what` says what is compared ("compare meshes") and lives as long as the program.
/// Cost: one gather of a number per rank, which CommTrace leaves out.
bool have_equal(const Group& group, const char* what, const Facts& own);

}  // namespace shardwise
