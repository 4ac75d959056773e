#include "runtime/rules/rule.h"

#include "runtime/comm/torch_versions.h"
#include "text/check.h"

#include <algorithm>

namespace shardwise {
namespace {

using Sides = std::pair<std::vector<std::string>, std::vector<std::string>>;

std::vector<std::string> split(std::string_view terms) {
  std::vector<std::string> result;
  for (size_t begin = 0; begin <= terms.size();) {
    size_t end = std::min(terms.find(',', begin), terms.size());
    result.emplace_back(terms.substr(begin, end - begin));
    begin = end + 1;
  }
  return result;
}

Sides parse(std::string_view notation) {
  const size_t arrow = notation.find("->");
  SW_CHECK_VALUE(arrow != std::string_view::npos,
                 "[rule] \"{}\" has no \"->\". Write operands, an arrow, outputs: \"mk,kn->mn\".", notation);
  Sides sides{split(notation.substr(0, arrow)), split(notation.substr(arrow + 2))};
  for (const auto* side : {&sides.first, &sides.second})
    for (const std::string& term : *side)
      SW_CHECK_VALUE(std::ranges::all_of(term, [](unsigned char letter) { return std::islower(letter); }),
                     "[rule] \"{}\" in \"{}\" is no term. Use letters a to z.", term, notation);
  return sides;
}

/// The notation, followed by the letters that only operands have: "mk,kn->mn {k: sum}".
std::string describe_notation(std::string_view notation) {
  const auto [inputs, outputs] = parse(notation);
  std::string reduced;
  for (const std::string& term : inputs)
    for (char letter : term) {
      auto has = [&](const std::string& output) { return output.find(letter) != std::string::npos; };
      if (!std::ranges::all_of(outputs, has) && reduced.find(letter) == std::string::npos) reduced += letter;
    }
  std::string text(notation);
  for (char letter : reduced) text += fmt::format("{}{}: sum", letter == reduced[0] ? " {" : ", ", letter);
  return reduced.empty() ? text : text + "}";
}

void apply_notation(const Sides& sides, const OpCall& call, Signature& signature) {
  std::unordered_map<char, int> factors;
  auto axes_of = [&](const std::string& term, c10::IntArrayRef sizes) {
    SW_CHECK_VALUE(term.size() == sizes.size(),
                   "[{}] a tensor of {} dims [{}] does not match \"{}\" in the rule. Give a function as the rule, "
                   "which returns None for calls that it does not support.",
                   call.op.name, sizes.size(), fmt::join(sizes, ", "), term);
    Axes axes;
    for (size_t dim = 0; dim < term.size(); ++dim) {
      auto [found, is_new] = factors.try_emplace(term[dim], 0);
      if (is_new) found->second = signature.add_factor(sizes[dim]);
      axes.push_back({found->second});
    }
    return axes;
  };
  auto known_axes = [&](const std::string& term) {
    Axes axes;
    for (char letter : term) axes.push_back({factors.at(letter)});
    return axes;
  };
  SW_CHECK_VALUE(call.operands.size() == sides.first.size() && call.outputs.size() == sides.second.size(),
                 "[{}] has {} tensors and {} outputs, but its rule has terms for {} and {}. Write a term for each.",
                 call.op.name, call.operands.size(), call.outputs.size(), sides.first.size(), sides.second.size());
  for (size_t i = 0; i < sides.first.size(); ++i)
    signature.inputs.push_back(axes_of(sides.first[i], call.operands[i].sizes));
  for (size_t i = 0; i < sides.second.size(); ++i) {
    const bool is_inferred = call.outputs[i].dtype != c10::ScalarType::Undefined;
    signature.outputs.push_back(is_inferred ? axes_of(sides.second[i], call.outputs[i].sizes)
                                            : known_axes(sides.second[i]));
  }
}

/// The axes of an operand: its dims are aligned to the right with those of `result`, whose dim i is factor i. Expanded dims have no factor.
Axes broadcast_axes(c10::IntArrayRef sizes, c10::IntArrayRef result) {
  Axes axes(sizes.size());
  for (size_t dim = 0; dim < sizes.size(); ++dim) {
    const size_t factor = result.size() - sizes.size() + dim;
    if (sizes[dim] == result[factor]) axes[dim].factor = static_cast<int>(factor);
  }
  return axes;
}

/// The sizes to which operands and outputs broadcast.
Dims common_sizes(const OpCall& call) {
  Dims common;
  auto join = [&](c10::IntArrayRef sizes) {
    if (sizes.size() > common.size()) common.insert(common.begin(), sizes.size() - common.size(), 1);
    for (size_t i = 1; i <= sizes.size(); ++i)
      if (int64_t size = sizes[sizes.size() - i]; size != 1) common[common.size() - i] = size;
  };
  for (const Operand& operand : call.operands) join(operand.sizes);
  for (const DenseOutput& output : call.outputs) join(output.sizes);
  return common;
}

void describe_pointwise(const OpCall& call, Signature& signature) {
  const Dims sizes = common_sizes(call);
  for (int64_t size : sizes) signature.add_factor(size);
  for (const Operand& operand : call.operands) signature.inputs.push_back(broadcast_axes(operand.sizes, sizes));
  for (const DenseOutput& output : call.outputs)
    signature.outputs.push_back(
        broadcast_axes(output.dtype == c10::ScalarType::Undefined ? sizes : output.sizes, sizes));
  signature.is_pointwise = true;
}

Dims dims_in(const c10::IValue& value, int64_t n_dims) {
  Dims dims;
  if (value.isInt()) dims.push_back(value.toInt());
  if (value.isIntList())
    for (int64_t dim : value.toIntVector()) dims.push_back(dim);
  for (int64_t& dim : dims) dim = dim < 0 ? dim + std::max<int64_t>(n_dims, 1) : dim;
  return dims;
}

}  // namespace

Rule::Rule(const char* notation)
    : Rule(describe_notation(notation), [sides = parse(notation)](const OpCall& call, Signature& signature) {
        apply_notation(sides, call, signature);
      }) {
  is_samplable_ = true;
}

Rule Rule::linear(Linearity linearity) const {
  Rule rule = *this;
  rule.linearity_ = linearity;
  return rule;
}

Rule Rule::whole(std::string arg) const {
  Rule rule = *this;
  rule.whole_args_.push_back(std::move(arg));
  return rule;
}

Rule Rule::sizes_in(std::string arg) const {
  Rule rule = *this;
  rule.sizes_arg_ = std::move(arg);
  return rule;
}

Rule Rule::localized(Localize localize) const {
  Rule rule = *this;
  rule.localize_ = std::move(localize);
  return rule;
}

Rule Rule::placed(std::string name, Place place) {
  Rule rule(std::move(name), nullptr);
  rule.place_ = std::move(place);
  return rule;
}

Rule Rule::takes_strided() const {
  Rule rule = *this;
  rule.for_strided_ = true;
  return rule;
}

Rule Rule::gathered() {
  Rule rule("gathered", nullptr);
  rule.gathered_ = true;
  return rule;
}

Rule Rule::computed_by(std::string_view op) const {
  Rule rule = *this;
  rule.kernel_ = find_operator(op);
  SW_CHECK_VALUE(rule.kernel_, "[rule] torch has no operator {}. Name one that it registers.", op);
  return rule;
}

Rule Rule::per_element(std::string scratch) const {
  Rule rule = *this;
  rule.per_element_ = true;
  rule.scratch_ = std::move(scratch);
  return rule;
}

Rule Rule::shape_only() const {
  Rule rule = *this;
  rule.shape_only_ = true;
  return rule;
}

Rule Rule::sampled() const {
  Rule rule = *this;
  rule.sampled_ = true;
  return rule;
}

Rule Rule::by_numbers() const {
  Rule rule = *this;
  rule.by_numbers_ = true;
  return rule;
}

std::string Rule::text() const {
  static constexpr const char* kLinearities[] = {"", " linear", " multilinear", " linear in the first", " passing"};
  std::string text = name_ + kLinearities[static_cast<int>(linearity_)];
  for (const std::string& arg : whole_args_) text += fmt::format(" whole({})", arg);
  if (!sizes_arg_.empty()) text += fmt::format(" sizes({})", sizes_arg_);
  if (kernel_) text += fmt::format(" by {}", kernel_->schema().name());
  if (per_element_) text += " per element";
  if (shape_only_) text += " shape only";
  return text;
}

Signature Rule::signature(const OpCall& call) const {
  Signature signature;
  describe_(call, signature);
  if (linearity_ != Linearity::kNone) signature.linearity = linearity_;
  for (const std::string& arg : whole_args_) {
    const Axes& axes = signature.inputs[0];
    const auto n_dims = static_cast<int64_t>(axes.size());
    for (int64_t dim : dims_in(call.arg(arg), n_dims))  // may be out of range: the operator reports that
      if (dim >= 0 && dim < n_dims && axes[dim].factor >= 0) signature.factors[axes[dim].factor].is_whole = true;
    signature.is_pointwise = false;
  }
  return signature;
}

void Rule::localize(const LocalCall& local, std::vector<c10::IValue>& args) const {
  if (!sizes_arg_.empty()) {
    const Dims& sizes = local.outputs[0].sizes;
    args[local.call.op.arg_index(sizes_arg_)] = std::vector<int64_t>(sizes.begin(), sizes.end());
  }
  if (localize_) localize_(local, args);
}

Rule pointwise() {
  Rule rule("pointwise", describe_pointwise);
  rule.is_samplable_ = true;
  return rule;
}

Rule reduction(Reduce reduce) {
  auto describe = [reduce](const OpCall& call, Signature& signature) {
    const auto n_dims = static_cast<int64_t>(call.operands[0].sizes.size());
    const auto& schema = call.op.handle.schema();
    Dims reduced;
    if (auto arg = schema.argumentIndexWithName("dim")) reduced = dims_in(call.args[*arg], n_dims);
    auto keep = schema.argumentIndexWithName("keepdim");
    const bool keeps = keep && call.args[*keep].toBool();

    const bool is_empty = c10::multiply_integers(call.operands[0].sizes) == 0;
    Axes input, output;
    for (int64_t dim = 0; dim < n_dims; ++dim) {
      input.push_back({signature.add_factor(call.operands[0].sizes[dim])});
      signature.factors.back().reduce = reduce;
      const bool is_reduced = reduced.empty() || std::ranges::count(reduced, dim);
      // An empty tensor has extremes along a non-empty dim, but a rank with an empty part of that dim could not compute them.
      signature.factors.back().is_whole = is_empty && is_reduced && call.operands[0].sizes[dim] > 0;
      if (!is_reduced) output.push_back(input.back());
      if (is_reduced && keeps) output.push_back({});
    }
    signature.inputs.push_back(input);
    for (size_t i = 0; i < call.outputs.size(); ++i) signature.outputs.push_back(output);
  };
  Rule rule(fmt::format("reduction {}", to_string(reduce)), describe);
  rule.is_samplable_ = true;
  return rule;
}

RuleTable& RuleTable::global() {
  static auto* table = new RuleTable;  // never destroyed: kernels may run at exit
  return *table;
}

void RuleTable::add(std::string_view op, Rule rule) {
  const bool is_there = find_operator(op).has_value();
  if (!is_there && is_of_some_versions(op)) return;
  SW_CHECK_VALUE(
      is_there,
      "[rule] torch has no operator {}. Define it before its rule; overloads are named as in aten::add.Tensor.", op);
  const std::lock_guard lock(mutex_);
  const bool is_new = rules_.emplace(op, std::move(rule)).second;
  SW_CHECK_VALUE(is_new, "[rule] {} has a rule already. State each operator once.", op);
}

void RuleTable::add(std::initializer_list<std::string_view> ops, const Rule& rule) {
  for (std::string_view op : ops) add(op, rule);
}

const Rule* RuleTable::find(const std::string& op) const {
  const std::lock_guard lock(mutex_);
  auto found = rules_.find(op);
  return found == rules_.end() ? nullptr : &found->second;
}

}  // namespace shardwise
