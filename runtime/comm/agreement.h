// runtime/comm/agreement.h: an exchange of facts among the ranks of a group, so that all go on in the same way.
//
//   Facts own("a part");                                           // the kind of thing this rank has
//   own.number(dim).list(part.sizes());
//   for (const Facts& each : agree(group, "from_local", own)) {    // one per member, by group order
//     FactReader reader(each);
//     ... reader.number() ... reader.list() ...
//   }
//
// All ranks get all facts and derive the same result from them: an error, or a layout. In a group that sends nothing (Group::sends) every
// other member counts as having this rank's facts.
#pragma once

#include "placements/box.h"
#include "runtime/comm/group.h"

#include <exception>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace shardwise {

/// Values that one rank sends to the others, in an order that all ranks know.
class Facts {
 public:
  /// `name`: the kind of thing that the facts describe, "a tensor", for the error when ranks have different kinds.
  explicit Facts(std::string_view name = "") { text(name); }
  /// Facts from the words() of earlier ones.
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

/// Reads facts in the order in which they were added. Must not outlive the facts. Throws: c10::Error when there are no more.
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

/// An exception of one rank, in a form that other ranks can throw too.
struct RankError {
  /// The types of c10's errors; kOther stands for c10::Error. A caller's mistake has a type from kValue to kNotImplemented.
  enum class Type : int64_t { kNone, kOther, kDistBackend, kOutOfMemory, kValue, kIndex, kType, kNotImplemented };
  Type type = Type::kNone;
  std::string text;

  explicit operator bool() const { return type != Type::kNone; }
  bool is_mistake() const { return type >= Type::kValue; }
  /// The exception being handled.
  static RankError current();
  /// The exception that `work()` throws, if it throws one.
  template <class Work>
  static RankError of(const Work& work) {
    try {
      work();
    } catch (const std::exception&) {
      return current();
    }
    return {};
  }
  /// Throws the exception if there is one.
  void raise() const;
};

/// The most words of facts that agree() sends in one message: of a kilobyte, because a shorter one takes as long.
inline constexpr size_t kShortFacts = 125;

/// The members' facts, by group order. Collective. `op` is named by errors and lives as long as the program. `error`: the reason why this
/// rank has no facts to send.
///
/// Throws, alike on all members: the error of the first rank that has one (other ranks add its rank number to the text); c10::ValueError if
/// members send facts of different kinds.
/// Cost: one gather of 1 KB per rank, and a second one if a rank's facts are not short. CommTrace leaves them out.
std::vector<Facts> agree(const Group& group, const char* op, const Facts& own, const RankError& error = {});

/// The members' numbers, by group order. Pre: all members send equally many. Collective: one communication named `what`
/// ("compare ids"), a text that lives as long as the program. CommTrace leaves it out unless `is_counted`.
std::vector<std::vector<int64_t>> gather_alike(const Group& group, const char* what, const std::vector<int64_t>& own,
                                               bool is_counted = false);

/// The same, for members that may send different amounts of numbers.
/// Cost: one gather of 1 KB per rank, and a second one if a rank has more numbers.
std::vector<std::vector<int64_t>> gather_numbers(const Group& group, const char* what, std::vector<int64_t> own,
                                                 bool is_counted = false);

/// Sends `to[i]` to group member i. Returns the numbers from each member, by group order; member i sends `n_from[i]` numbers. Collective:
/// one all_to_all on `device`. In a group that sends nothing, this rank's numbers for itself arrive from each member, cut or followed by zeros.
std::vector<std::vector<int64_t>> exchange_numbers(const Group& group, c10::Device device,
                                                   const std::vector<std::vector<int64_t>>& to,
                                                   const std::vector<int64_t>& n_from);

/// Returns the members' texts, by group order, on the first member, and nothing on the others. Collective: each text is sent once.
std::vector<std::string> gathered_texts(const Group& group, const std::string& own);

/// True if all members have the same facts. Collective. `what` names the comparison ("compare meshes") and lives as long as the program.
/// Cost: one gather of a number per rank, which CommTrace leaves out.
bool have_equal(const Group& group, const char* what, const Facts& own);

}  // namespace shardwise
