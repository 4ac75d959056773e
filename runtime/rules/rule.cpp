#include "runtime/rules/rule.h"

#include "runtime/comm/torch_versions.h"
#include "text/check.h"

#include <ATen/ExpandUtils.h>

#include <algorithm>

namespace shardwise {
namespace {

/// A tensor in notation: "…mk".
struct Term {
  std::string text;
  bool has_batch = false;
  std::string dims;  // letters, and '_' for a dim that is never sharded
};

struct Sides {
  std::vector<Term> inputs, outputs;
};

std::vector<Term> parse_side(std::string_view terms, std::string_view notation) {
  static constexpr std::string_view kBatch = "…";
  std::vector<Term> result;
  for (size_t begin = 0; begin <= terms.size();) {
    const size_t end = std::min(terms.find(',', begin), terms.size());
    const std::string_view text = terms.substr(begin, end - begin);
    const bool has_batch = text.starts_with(kBatch);
    result.push_back({std::string(text), has_batch, std::string(text.substr(has_batch ? kBatch.size() : 0))});
    SW_CHECK_VALUE(std::ranges::all_of(result.back().dims,
                                       [](unsigned char letter) { return std::islower(letter) || letter == '_'; }),
                   "[rule] \"{}\" in \"{}\" is no term. Use letters a to z, _ for a dim that is never sharded, and a "
                   "leading … for batch dims.",
                   text, notation);
    begin = end + 1;
  }
  return result;
}

Sides parse(std::string_view notation) {
  const size_t arrow = notation.find("->");
  SW_CHECK_VALUE(arrow != std::string_view::npos,
                 "[rule] \"{}\" has no \"->\". Write operands, an arrow, outputs: \"mk,kn->mn\".", notation);
  return {parse_side(notation.substr(0, arrow), notation), parse_side(notation.substr(arrow + 2), notation)};
}

/// The notation, followed by the letters that only operands have: "mk,kn->mn {k: sum}".
std::string describe_notation(std::string_view notation) {
  const auto [inputs, outputs] = parse(notation);
  std::string reduced;
  for (const Term& term : inputs)
    for (char letter : term.dims) {
      const auto has = [&](const Term& output) { return output.dims.find(letter) != std::string::npos; };
      if (letter != '_' && !std::ranges::all_of(outputs, has) && reduced.find(letter) == std::string::npos)
        reduced += letter;
    }
  std::string text(notation);
  for (char letter : reduced) text += fmt::format("{}{}: sum", letter == reduced[0] ? " {" : ", ", letter);
  return reduced.empty() ? text : text + "}";
}

void apply_notation(const Sides& sides, const OpCall& call, Signature& signature) {
  const auto& [inputs, outputs] = sides;
  SW_CHECK_VALUE(call.operands.size() == inputs.size() && call.outputs.size() == outputs.size(),
                 "[{}] has {} tensors and {} outputs, but its rule has terms for {} and {}. Write a term for each.",
                 call.op.name, call.operands.size(), call.outputs.size(), inputs.size(), outputs.size());
  const auto batch_of = [](const Term& term, c10::IntArrayRef sizes) {
    const bool has_any = term.has_batch && sizes.size() > term.dims.size();
    return sizes.slice(0, has_any ? sizes.size() - term.dims.size() : 0);
  };
  Dims batch;
  for (size_t i = 0; i < inputs.size(); ++i)
    batch = at::infer_size_dimvector(batch, batch_of(inputs[i], call.operands[i].sizes));
  const Axes batch_axes = signature.add_factors(batch);
  std::unordered_map<char, int> factors;
  const auto axes_of = [&](const Term& term, c10::IntArrayRef sizes, bool is_input) {
    const c10::IntArrayRef of_batch = batch_of(term, sizes);
    SW_CHECK_VALUE(of_batch.size() + term.dims.size() == sizes.size(),
                   "[{}] a tensor of {} dims [{}] does not match \"{}\" in the rule. Give a function as the rule, "
                   "which returns None for calls that it does not support.",
                   call.op.name, sizes.size(), fmt::join(sizes, ", "), term.text);
    Axes axes = broadcast_axes(of_batch, batch, batch_axes);
    for (char letter : term.dims) {
      const int64_t size = sizes[axes.size()];
      if (letter == '_') {
        axes.push_back(is_input ? Axis{signature.add_factor(size, /*is_whole=*/true)} : Axis{});
        continue;
      }
      const auto [found, is_new] = factors.try_emplace(letter, 0);
      if (is_new) {
        found->second = signature.add_factor(size);
        signature.factors.back().letter = letter;
      }
      axes.push_back({found->second});
    }
    return axes;
  };
  const auto known_axes = [&](const Term& term) {
    Axes axes = term.has_batch ? batch_axes : Axes();
    for (char letter : term.dims) axes.push_back(letter == '_' ? Axis{} : Axis{factors.at(letter)});
    return axes;
  };
  for (size_t i = 0; i < inputs.size(); ++i)
    signature.inputs.push_back(axes_of(inputs[i], call.operands[i].sizes, /*is_input=*/true));
  for (size_t i = 0; i < outputs.size(); ++i) {
    const auto& [sizes, strides, dtype] = call.outputs[i];
    const bool is_left_out = outputs[i].has_batch && sizes.size() < outputs[i].dims.size();
    signature.outputs.push_back(dtype == c10::ScalarType::Undefined ? known_axes(outputs[i])
                                : is_left_out                       ? Axes(sizes.size())
                                                                    : axes_of(outputs[i], sizes, /*is_input=*/false));
  }
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
  const Axes axes = signature.add_factors(sizes);
  for (const Operand& operand : call.operands) signature.inputs.push_back(broadcast_axes(operand.sizes, sizes, axes));
  for (const DenseOutput& output : call.outputs)
    signature.outputs.push_back(output.dtype == c10::ScalarType::Undefined ? axes
                                                                           : broadcast_axes(output.sizes, sizes, axes));
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

Axes broadcast_axes(c10::IntArrayRef sizes, c10::IntArrayRef result, const Axes& result_axes) {
  TORCH_INTERNAL_ASSERT(sizes.size() <= result.size(), sizes, " does not broadcast to ", result);
  Axes axes(sizes.size());
  for (size_t dim = 0; dim < sizes.size(); ++dim) {
    const size_t at = result.size() - sizes.size() + dim;
    if (sizes[dim] == result[at]) axes[dim] = result_axes[at];
  }
  return axes;
}

Rule::Rule(const char* notation)
    : Rule(describe_notation(notation), [sides = parse(notation)](const OpCall& call, Signature& signature) {
        apply_notation(sides, call, signature);
      }) {
  is_samplable_ = true;
}

Rule Rule::whole(std::string arg) const {
  Rule rule = *this;
  rule.whole_args_.push_back(std::move(arg));
  return rule;
}

Rule Rule::placed(std::string name, Place place) {
  return Rule(std::move(name), nullptr).with(&Rule::place_, std::move(place));
}

Rule Rule::gathered() { return Rule("gathered", nullptr).with(&Rule::gathered_, true); }

Rule Rule::computed_by(std::string_view op) const {
  const auto kernel = find_operator(op);
  SW_CHECK_VALUE(kernel, "[rule] torch has no operator {}. Name one that it registers.", op);
  return with(&Rule::kernel_, kernel);
}

Rule Rule::per_element(std::string scratch) const {
  return with(&Rule::per_element_, true).with(&Rule::scratch_, std::move(scratch));
}

std::string Rule::text() const {
  static constexpr const char* kLinearities[] = {"", " linear", " multilinear", " linear in the first", " passing"};
  std::string text = name_ + kLinearities[static_cast<int>(linearity_)];
  for (const std::string& arg : whole_args_) text += fmt::format(" whole({})", arg);
  if (!sizes_arg_.empty()) text += fmt::format(" sizes({})", sizes_arg_);
  if (kernel_) text += fmt::format(" by {}", kernel_->schema().name());
  if (per_element_) text += " per element";
  if (shape_only_) text += " shape only";
  for (const auto& [reduce, result, operands] : passing_)
    text += reduce == result ? fmt::format(", Partial({}) passes", to_string(reduce))
                             : fmt::format(", Partial({}) becomes Partial({})", to_string(reduce), to_string(result));
  return text;
}

Signature Rule::signature(const OpCall& call) const {
  Signature signature;
  describe_(call, signature);
  if (linearity_ != Linearity::kNone) signature.linearity = linearity_;
  const auto is_exact = [&](const PassingPartial& partial) {
    const SpecPtr& spec = call.operands[0].spec;
    return partial.reduce == partial.result || (spec && c10::isFloatingType(spec->dtype()));
  };
  std::ranges::copy_if(passing_, std::back_inserter(signature.passing), is_exact);
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
      const int64_t size = call.operands[0].sizes[dim];
      const bool is_reduced = reduced.empty() || std::ranges::count(reduced, dim);
      // An empty tensor has extremes along a non-empty dim, but a rank with an empty part of that dim could not compute them.
      input.push_back({signature.add_factor(size, is_empty && is_reduced && size > 0)});
      signature.factors.back().reduce = reduce;
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

void RuleTable::keep_symbols(std::initializer_list<const char*> ops) { keep_symbols_.insert(ops.begin(), ops.end()); }

bool RuleTable::keeps_symbols(const std::string& op) const { return keep_symbols_.contains(op); }

}  // namespace shardwise
