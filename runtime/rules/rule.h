// runtime/rules/rule.h: how an operator maps layouts to layouts, as one value per operator.
//
//   t.add("aten::mm", "mk,kn->mn");               // k sharded: the result is Partial(sum)
//   t.add("aten::add.Tensor", pointwise().linear());
//   t.add("aten::_softmax", pointwise().whole("dim"));
//
// A factor (a letter) is an index range that operands and outputs share. A rule describes one mesh dimension, which shards one factor, or
// replicates, or passes a Partial on. propagate.h applies it to all mesh dimensions.
#pragma once

#include "runtime/rules/op_call.h"

#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <vector>

namespace shardwise {

/// The relation of a tensor dim to a factor: `scale` consecutive elements per index of the factor. Factor -1: nothing to shard (a broadcast
/// dim of extent 1).
struct Axis {
  int factor = -1;
  int64_t scale = 1;
};
using Axes = c10::SmallVector<Axis, 5>;

struct Factor {
  int64_t size = 0;
  bool is_whole = false;                        // may not be sharded
  std::optional<Reduce> reduce = Reduce::kSum;  // the reduction of an output that lacks the factor
  char letter = 0;                              // in the rule's notation, if it has one
};

/// The Partial operands that an operator passes on without reducing them.
enum class Linearity : uint8_t {
  kNone,
  kAll,    // f(a+b, c+d) = f(a, c) + f(b, d): all operands partial together (add, cat, copy_)
  kEach,   // one operand partial, the others replicated (mul, mm)
  kFirst,  // only operand 0 partial, the others replicated (div, relu's backward)
  kPass,   // any reduction passes (views, clone)
};

/// Partials that pass through an operator that is not linear in them, such as the maximum of two maxima.
struct PassingPartial {
  Reduce reduce = Reduce::kSum;
  /// The output is Partial of this: the negative of a maximum is a minimum, except for integers, which wrap around.
  Reduce result = Reduce::kSum;
  c10::SmallVector<int, 2> operands;  // these are Partial, all others replicas; empty: all are Partial
};

/// The factors of one call.
struct Signature {
  c10::SmallVector<Factor, 6> factors;
  c10::SmallVector<Axes, 4> inputs;   // one per operand
  c10::SmallVector<Axes, 2> outputs;  // one per (flattened) output
  Linearity linearity = Linearity::kNone;
  c10::SmallVector<PassingPartial, 2> passing;  // besides those of `linearity`
  c10::SmallVector<int, 1> additive;  // operands added once to the result: Partial if a factor is summed (a bias)
  bool is_pointwise = false;          // may run box by box

  void set(c10::SmallVector<Axes, 4> of_inputs, c10::SmallVector<Axes, 2> of_outputs) {
    inputs = std::move(of_inputs);
    outputs = std::move(of_outputs);
  }
  int add_factor(int64_t size, bool is_whole = false) {
    factors.push_back({size, is_whole});
    return static_cast<int>(factors.size()) - 1;
  }
  /// A new factor for each of the dims.
  Axes add_factors(c10::IntArrayRef sizes, bool is_whole = false) {
    Axes axes;
    for (int64_t size : sizes) axes.push_back({add_factor(size, is_whole)});
    return axes;
  }
};

/// The axes of a tensor of `sizes` that broadcasts to `result`: the result's last axes, without a factor where the tensor expands.
Axes broadcast_axes(c10::IntArrayRef sizes, c10::IntArrayRef result, const Axes& result_axes);

/// This rank's part of a call: the box of each operand and output. A plain 0-dim operand has an empty Box.
struct LocalCall {
  const OpCall& call;
  c10::ArrayRef<Box> inputs;
  c10::ArrayRef<Box> outputs;
};

struct Propagation;

class Rule {
 public:
  using Describe = std::function<void(const OpCall&, Signature&)>;
  /// Replaces scalars that describe global sizes or positions with local ones.
  using Localize = std::function<void(const LocalCall&, std::vector<c10::IValue>& args)>;
  /// Computes the propagation for a call's layouts by itself; nothing: replicate.
  using Place = std::function<std::optional<Propagation>(const OpCall&)>;

  Rule(std::string name, Describe describe) : name_(std::move(name)), describe_(std::move(describe)) {}
  /// From factor notation: "mk,kn->mn". `_` is a dim that is never sharded; a leading … is any number of batch dims, which broadcast.
  /// Throws: c10::ValueError for a text that is not valid notation.
  Rule(const char* notation);  // NOLINT: a rule is spelled as its text
  /// A rule that factors cannot express, such as the shards of a slice.
  static Rule placed(std::string name, Place place);
  /// A rule for results that need every value on every rank: inputs are gathered, without a warning.
  static Rule gathered();

  // Modifiers, in any order.
  Rule linear(Linearity linearity = Linearity::kAll) const { return with(&Rule::linearity_, linearity); }
  Rule multilinear() const { return linear(Linearity::kEach); }
  Rule linear_in_first() const { return linear(Linearity::kFirst); }
  /// These Partials pass, too.
  Rule passing(c10::SmallVector<PassingPartial, 2> partials) const {
    return with(&Rule::passing_, std::move(partials));
  }
  /// The dims in the integer (or integer list) argument `arg` are gathered first. Disables sampling; add sampled() to allow it.
  Rule whole(std::string arg) const;
  /// Argument `arg` is the global size of the (single) output.
  Rule sizes_in(std::string arg) const { return with(&Rule::sizes_arg_, std::move(arg)); }
  Rule localized(Localize localize) const { return with(&Rule::localize_, std::move(localize)); }
  /// Operator `op`, with the same arguments, runs on the pieces. If it copies where the result should be a view, the result is a copied
  /// view.
  /// Throws: c10::ValueError for an operator that torch does not know.
  Rule computed_by(std::string_view op) const;
  /// The rule applies to each element of the tensor lists by itself: element i of each list is laid out like element i of the first.
  /// `scratch`: an argument that the schema marks as written although only its values are read (a fused optimizer's gradients); it may be
  /// moved.
  Rule per_element(std::string scratch = "") const;
  /// Only the operands' shapes are read: the output has the layout of the first operand, without Partial.
  Rule shape_only() const { return with(&Rule::shape_only_, true); }
  /// Whether infer_from_sample() can replace a meta kernel that torch lacks: the factors follow from the operands alone, and other arguments do not
  /// decide the strides.
  Rule sampled(bool can_be = true) const { return with(&Rule::sampled_, can_be); }
  /// A placed() rule that takes strided Shards as they are; for others they become Shards first.
  Rule takes_strided() const { return with(&Rule::for_strided_, true); }
  /// The values of Scalar and float arguments affect the result, not only their kinds, so each value gets its own decision.
  Rule by_numbers() const { return with(&Rule::by_numbers_, true); }

  Signature signature(const OpCall& call) const;
  bool has_local_args() const { return localize_ || !sizes_arg_.empty(); }
  /// True if the result's sizes are the only argument that localize() replaces.
  bool takes_sizes() const { return !sizes_arg_.empty() && !localize_; }
  /// True if localize() needs to know where in the tensor a piece is, not only its sizes.
  bool has_positions() const { return static_cast<bool>(localize_); }
  /// Replaces the arguments that describe global sizes or positions. Pre: has_local_args().
  void localize(const LocalCall& local, std::vector<c10::IValue>& args) const;
  const Place& place() const { return place_; }
  const std::optional<c10::OperatorHandle>& kernel() const { return kernel_; }
  bool is_per_element() const { return per_element_; }
  bool is_shape_only() const { return shape_only_; }
  bool is_sampled() const { return sampled_.value_or(is_samplable_ && whole_args_.empty()); }
  bool is_gathered() const { return gathered_; }
  bool is_for_strided() const { return for_strided_; }
  bool is_by_numbers() const { return by_numbers_; }
  const std::string& scratch() const { return scratch_; }
  /// Its name and modifiers: "mk,kn->mn {k: sum}", "pointwise linear".
  std::string text() const;

 private:
  friend Rule pointwise();
  friend Rule reduction(Reduce reduce);

  template <class Value>
  Rule with(Value Rule::* member, std::type_identity_t<Value> value) const {
    Rule rule = *this;
    rule.*member = std::move(value);
    return rule;
  }

  std::string name_;
  Describe describe_;
  Linearity linearity_ = Linearity::kNone;  // kNone: set by describe_
  c10::SmallVector<PassingPartial, 2> passing_;
  std::vector<std::string> whole_args_;
  std::string sizes_arg_;
  Localize localize_;
  Place place_;
  std::optional<c10::OperatorHandle> kernel_;
  bool per_element_ = false;
  bool shape_only_ = false;
  bool gathered_ = false;
  bool for_strided_ = false;
  bool is_samplable_ = false;    // the factors follow from the operands alone, unless arguments make some whole
  std::optional<bool> sampled_;  // ... or sampled() was called
  bool by_numbers_ = false;
  std::string scratch_;
};

inline std::string to_string(const Rule& rule) { return rule.text(); }

/// Elementwise with torch's broadcasting, over the output's dims.
Rule pointwise();
/// Reduces the dims in argument "dim" (all dims if it is absent or None), and respects "keepdim" if the operator has it.
Rule reduction(Reduce reduce);

/// Rules by operator name, filled by ops/register.cpp while the library loads, and by add_user_rule(). Thread-safe.
class RuleTable {
 public:
  static RuleTable& global();

  /// Throws: c10::ValueError for an operator that torch does not know or that has a rule already.
  void add(std::string_view op, Rule rule);
  void add(std::initializer_list<std::string_view> ops, const Rule& rule);
  /// Null if there is none. A rule lives as long as the table.
  const Rule* find(const std::string& op) const;

  /// Names operators, with or without a rule, of which the pieces of results have the right sizes whatever the sizes of whole dims are, so that graphs
  /// keep symbols for these (runtime/tensor/symbolic_sizes.h). Their derivatives must consist of such operators. Pointwise ones need no mention.
  void keep_symbols(std::initializer_list<const char*> ops);
  bool keeps_symbols(const std::string& op) const;

 private:
  mutable std::mutex mutex_;
  std::unordered_map<std::string, Rule> rules_;
  std::unordered_set<std::string> keep_symbols_;
};

}  // namespace shardwise
